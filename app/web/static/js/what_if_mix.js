// The planned mix of an answer next to today's: replicas and their SM percents by service and GPU type, and the GPUs.

import { h, show } from "./dom.js";
import { number } from "./format.js";

const MOST_ROWS = 200;
const pick = h("select", { id: "what-if-mix", onchange: () => drawOne() });
const chooser = h("div", { class: "controls" }, h("label", { for: "what-if-mix" }, "Planned mix next to today's, of: "), pick);
const differs = h("div", {});
const same = h("div", {});
const kept = h("details", { class: "card" }, h("summary", {}), same);
let today = null;
let answers = [];

/** Where it is drawn. */
export const mixes = h("section", { hidden: true }, chooser, differs, kept);

/** Take the answers of a question, best first; without any there is nothing to compare. */
export function drawMixes(ofToday, found) {
  [today, answers] = [ofToday, found];
  mixes.hidden = answers.length === 0;
  if (answers.length === 0) return;
  show(pick, answers.map((each, at) => h("option", { value: at }, each.question)));
  drawOne();
}

/** Rows of both mixes by what they are about: {service, gpu_type, before, after}, null where there is no replica. */
function beside(mine, theirs) {
  const rows = new Map();
  const put = (mix, side) => {
    for (const each of mix) {
      const key = `${each.service}\n${each.gpu_type}`;
      rows.set(key, { service: each.service, gpu_type: each.gpu_type, before: null, after: null, ...rows.get(key), [side]: each });
    }
  };
  put(theirs, "before");
  put(mine, "after");
  return [...rows.keys()].sort().map((key) => rows.get(key));
}

const isSame = ({ before, after }) => before !== null && after !== null && before.replicas === after.replicas && Math.abs(before.sm_percent - after.sm_percent) < 0.05;

function drawOne() {
  const answer = answers[Number(pick.value)] ?? answers[0];
  const rows = beside(answer.mix, today.mix);
  const [changed, stays] = [rows.filter((row) => !isSame(row)), rows.filter(isSame)];
  show(differs, gpuTable(answer), changed.length
    ? mixTable("Replicas that differ", changed)
    : h("p", { class: "hint" }, "Every service has the same replicas with the same SM percents as today."));
  kept.hidden = stays.length === 0;
  show(kept.querySelector("summary"), `The same as today: ${number(stays.length, 0)} ${stays.length === 1 ? "line" : "lines"}`);
  show(same, mixTable("Replicas that are the same", stays));
}

const figure = (...words) => h("td", { class: "number" }, ...words);
const off = (value, digits = null) => (Math.abs(value) < 0.05 ? "0" : `${value > 0 ? "+" : "−"}${number(Math.abs(value), digits)}`);
const head = (names, left) => h("thead", {}, h("tr", {}, names.map((name, at) => h("th", { scope: "col", class: at < left ? null : "number" }, name))));

/** How many replicas, and how many GPUs their SM percents come to: 250 % are 2.5 GPUs. */
function mixTable(caption, rows) {
  const line = ({ service, gpu_type, before, after }) => h("tr", {}, h("th", { scope: "row" }, service), h("td", {}, gpu_type),
    figure(number(before?.replicas ?? 0, 0)), figure(number(after?.replicas ?? 0, 0)), figure(off((after?.replicas ?? 0) - (before?.replicas ?? 0), 0)),
    figure(`${number(before?.sm_percent ?? 0)} %`), figure(`${number(after?.sm_percent ?? 0)} %`));
  const more = rows.length > MOST_ROWS ? h("p", { class: "hint" }, `${number(rows.length - MOST_ROWS, 0)} more are left out.`) : null;
  return h("div", {}, h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, caption),
    head(["Service", "GPU type", "Replicas today", "In the scenario", "Difference", "SM percent today, all of them", "In the scenario"], 2),
    h("tbody", {}, rows.slice(0, MOST_ROWS).map(line)))), more);
}

function gpuTable(answer) {
  const types = [...new Set([...Object.keys(answer.gpus), ...Object.keys(today.gpus)])].sort();
  const line = (name) => {
    const [before, after] = [today.gpus[name] ?? 0, answer.gpus[name] ?? 0];
    return h("tr", {}, h("th", { scope: "row" }, name), figure(number(before, 0)), figure(number(after, 0)), figure(off(after - before, 0)));
  };
  return h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, "GPUs in use"), head(["GPU type", "Today", "In the scenario", "Difference"], 1), h("tbody", {}, types.map(line))));
}
