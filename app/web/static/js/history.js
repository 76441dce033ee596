// The past that a page's charts show: a choice of the time range, which stands in the address, and what the API knows of it.

import * as api from "./api.js";
import { h, show } from "./dom.js";
import { moment, span } from "./format.js";

const RANGES = { "15m": ["last 15 minutes", 900], "1h": ["last hour", 3600], "6h": ["last 6 hours", 21600], "24h": ["last 24 hours", 86400], "7d": ["last 7 days", 604800] };
const OTHERWISE = "1h";
const CUSTOM = "custom";
const NAMES = ["range", "from", "to"];
const MIN_REFRESH_S = 5;

/**
 * {element, zoom(from_s, to_s)}: the choice; `draw(found, isLive)` gets each answer of `path`, at first and when another
 * range is chosen, and with each new step while the range ends now.
 */
export function historyPicker(path, draw) {
  const choice = h("select", { onchange: () => (choice.value === CUSTOM ? offer() : choose({ range: choice.value })) },
    Object.entries(RANGES).map(([value, [words]]) => h("option", { value }, words)), h("option", { value: CUSTOM }, "from … to …"));
  const [from, to] = ["From", "To"].map((name) => h("input", { type: "datetime-local", step: 1, required: true, "aria-label": name }));
  const custom = h("form", { class: "controls", hidden: true, onsubmit: submit }, h("span", {}, from, " to ", to), h("button", {}, "Show"));
  const covered = h("span", { class: "hint", role: "status" }, "\u00a0");
  const problem = h("span", { class: "bad", role: "alert" });
  const element = h("div", { class: "controls history" }, h("label", {}, "Time range ", choice), custom, problem, covered);
  let asked = 0;
  let timer = null;

  function read() {
    const address = new URL(window.location).searchParams;
    const [start, end] = ["from", "to"].map((name) => Date.parse(address.get(name)));
    if (end > start) {
      [from.value, to.value] = [start, end].map(localTime);
      return { from: start, to: end };
    }
    const range = address.get("range") ?? OTHERWISE;
    if (range in RANGES && !address.has("from") && !address.has("to")) return { range };
    return { range: OTHERWISE, wrong: "The address names no time range that there is, so the last hour is shown." };
  }

  async function load() {
    const wanted = read();
    const mine = (asked += 1);
    window.clearTimeout(timer);
    choice.value = wanted.range ?? CUSTOM;
    custom.hidden = choice.value !== CUSTOM;
    let step_s = MIN_REFRESH_S;
    try {
      const found = await api.get(path, wanted.range ? { last_s: RANGES[wanted.range][1] } : { since: iso(wanted.from), until: iso(wanted.to) });
      if (mine !== asked) return;
      step_s = Math.max(step_s, found.step_s);
      show(problem, wanted.wrong ?? "");
      show(covered, `${moment(found.since)} to ${moment(found.until)}, a point for each ${span(found.step_s)}`);
      draw(found, Boolean(wanted.range));
    } catch (error) {
      // What is not there at all has no past either: the page says so, whichever answer comes first.
      if (mine === asked && error.status !== 404) show(problem, error.message);
    }
    if (mine === asked && wanted.range) timer = window.setTimeout(refresh, 1000 * step_s);
  }

  const refresh = () => (document.hidden ? (timer = window.setTimeout(refresh, 1000 * MIN_REFRESH_S)) : load());

  function choose(pairs) {
    const address = new URL(window.location);
    for (const name of NAMES) address.searchParams.delete(name);
    for (const [name, value] of Object.entries(pairs)) address.searchParams.set(name, value);
    window.history.pushState(null, "", address);
    load();
  }

  /** Two times to choose, at first those of the last hour by the reader's clock. */
  function offer() {
    // The next refresh, or one on its way, would put the range of before back in the middle of the choice.
    window.clearTimeout(timer);
    asked += 1;
    custom.hidden = false;
    if (!from.value) [from.value, to.value] = [Date.now() - 3600000, Date.now()].map(localTime);
    from.focus();
  }

  function submit(event) {
    event.preventDefault();
    const [start, end] = [from, to].map((input) => Date.parse(input.value));
    if (end > start) return choose({ from: iso(start), to: iso(end) });
    show(problem, "The first time must be before the second: change one of them.");
    return from.focus();
  }

  window.addEventListener("popstate", load);
  load();
  return { element, zoom: (from_s, to_s) => choose({ from: iso(1000 * from_s), to: iso(1000 * to_s) }) };
}

/** The starts of all steps of an answer, in seconds: a step of which nothing is known is a gap and not a line across it. */
export function stepsOf({ since, until, step_s }) {
  const [first, last] = [since, until].map((at) => Date.parse(at) / 1000);
  return Array.from({ length: Math.max(0, Math.ceil((last - first) / step_s)) }, (_, at) => first + at * step_s);
}

const iso = (at) => new Date(at).toISOString().replace(".000Z", "Z");

/** As inputs of times want it: in the reader's time zone, to the second. */
const localTime = (at) => new Date(at - 60000 * new Date(at).getTimezoneOffset()).toISOString().slice(0, 19);
