// Charts: uPlot for what runs over time, ECharts for everything else; both in the page's colours, and redrawn with them.

import uPlot from "../vendor/uplot.js";
import { h } from "./dom.js";
import { moment } from "./format.js";

const sheet = h("link", { rel: "stylesheet", href: new URL("../vendor/uplot.css", import.meta.url).href });
document.head.append(sheet);

/** The value of a colour of the style sheet, e.g. colour("accent"). */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** The same, let through by so much: 0 nothing, 1 all. */
export function veil(name, alpha) {
  const [red, green, blue] = [1, 3, 5].map((at) => Number.parseInt(colour(name).slice(at, at + 2), 16));
  return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
}

/** Colours for things that have none of their own, the same for the same place in a list. */
export const SERIES = ["#3b82c4", "#d98b2b", "#2f9e7a", "#a06bc2", "#c4534b", "#7a8b2f", "#4aa3b8", "#b8619a", "#8a6d4b", "#5f78c9"];

/**
 * A chart over time that may be changed: {element, set(data)}; data is uPlot's, times in seconds first.
 * `series` and `bands` are functions, asked again when the theme turns; `format` words the values of the axis.
 * `range(plot, least, most)`: the ends of the axis, e.g. fromZero. `isWide(data)`: whether values lie so far apart that
 * the axis is logarithmic; on a linear one the largest would press all others to the bottom. `zoom(from_s, to_s)` is told
 * what somebody drew a box around.
 */
export function timeChart({ title, height = 220, series, bands = () => [], format = String, hooks = {}, range = null, isWide = () => false, zoom = null }) {
  const place = h("div", { class: "chart" });
  const element = h("figure", { class: "card" }, h("figcaption", {}, title), place);
  let data = null;
  let plot = null;
  let wide = false;
  const scales = () => (wide ? { y: { distr: 3 } } : range ? { y: { range } } : {});
  const boxed = (drawn) => {
    const { left, width } = drawn.select;
    if (width > 0) zoom(...[left, left + width].map((at) => drawn.posToVal(at, "x")));
  };
  const draw = () => {
    plot?.destroy();
    plot = null;
    if (data === null || place.clientWidth === 0) return;
    const axis = { stroke: colour("faint"), grid: { stroke: colour("edge"), width: 1 }, ticks: { stroke: colour("edge") } };
    const values = (_, splits) => splits.map((value) => (value === null ? "" : format(value)));
    plot = new uPlot({
      width: place.clientWidth, height, hooks: zoom ? { ...hooks, setSelect: [boxed] } : hooks, bands: bands(), series: [{ label: "time", value: (_, time_s) => moment(asIso(time_s)) }, ...series().map((each) => ({ points: { filter: alone }, ...each }))],
      scales: scales(),
      padding: [null, 30, null, null], axes: [{ ...axis, values: clocks, space: 80 }, { ...axis, values, size: 76 }], cursor: { sync: SHARED, drag: { x: true, y: false, setScale: zoom === null } }, legend: { live: true },
    }, data, place);
  };
  place.style.minHeight = `${height + 34}px`; // With the legend: the page does not jump when the data come.
  follow(place, draw, () => plot?.setSize({ width: place.clientWidth, height }));
  const set = (fresh) => {
    data = fresh;
    const isNew = wide !== isWide(data);
    wide = isWide(data);
    element.dataset.scale = wide ? "logarithmic" : "linear";
    if (plot === null || isNew) draw();
    else plot.setData(data);
  };
  return { element, set };
}

/** A value between two gaps has no line to be on: it is drawn as a point. Null: uPlot's own choice. */
function alone(plot, at, isShown) {
  if (isShown) return null;
  const values = plot.data[at];
  return values.flatMap((value, place) => (value !== null && (values[place - 1] ?? null) === null && (values[place + 1] ?? null) === null ? [place] : []));
}

/** Zero is at the bottom, however little the values vary. */
export const fromZero = (_, least, most) => [0, 1.08 * (most || 1)];

/** The cursor is at the same time in all charts of a page; a box is drawn in one of them. */
const SHARED = { key: "time", filters: { sub: (event) => !["mousedown", "mouseup", "dblclick"].includes(event) } };

const asIso = (time_s) => (time_s === null ? null : new Date(1000 * time_s).toISOString());

/** Words of the axis of time: seconds only where they differ, days where hours do not. */
function clocks(_, times_s, __, ___, step_s) {
  const time = (at) => at.toLocaleTimeString("en-GB", step_s < 60 ? {} : { hour: "2-digit", minute: "2-digit" });
  return times_s.map((each) => new Date(1000 * each)).map((at) => (step_s < 86400 ? time(at) : at.toLocaleDateString("en-CA")));
}

/** Any other chart: {element, set(option)}; `option()` is ECharts', asked again when the theme turns. */
export function chart({ title, height = 300 }) {
  const place = h("div", { class: "chart" });
  const element = h("figure", { class: "card" }, h("figcaption", {}, title), place);
  let option = null;
  let drawn = null;
  const draw = async () => {
    if (option === null) return;
    const echarts = await library();
    if (place.clientWidth === 0) return;
    drawn ??= echarts.init(place);
    drawn.setOption({ ...plain(), ...option() }, { notMerge: true });
  };
  place.style.height = `${height}px`;
  follow(place, draw, () => drawn?.resize());
  const set = (fresh) => {
    option = fresh;
    return draw();
  };
  return { element, set, on: async (event, act) => { await draw(); drawn?.on(event, act); } };
}

/** Axes, text and tooltip of ECharts in the page's colours. Tooltips are drawn, not written as HTML: see the CSP. */
function plain() {
  return {
    animation: false, color: SERIES, backgroundColor: "transparent", textStyle: { color: colour("ink"), fontFamily: "inherit" },
    legend: { type: "scroll", textStyle: { color: colour("ink") }, bottom: 0 }, grid: { left: 64, right: 16, top: 16, bottom: 56 },
    tooltip: { trigger: "axis", renderMode: "richText", confine: true, backgroundColor: colour("paper"), borderColor: colour("edge"), textStyle: { color: colour("ink") } },
  };
}

/** Style of an axis of ECharts. */
export const axisStyle = () => ({
  axisLine: { lineStyle: { color: colour("edge") } }, axisLabel: { color: colour("faint") },
  splitLine: { lineStyle: { color: colour("edge") } }, nameTextStyle: { color: colour("faint") },
});

async function library() {
  await import("../vendor/echarts.js");
  return globalThis.echarts;
}

function follow(place, draw, resize) {
  document.addEventListener("themechange", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let width = 0;
  new ResizeObserver(() => {
    if (place.clientWidth === width) return;
    const was = width;
    width = place.clientWidth;
    if (was === 0) draw();
    else resize();
  }).observe(place);
}
