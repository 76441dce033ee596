// Simulate: a scenario under several policies, in a process next to the control plane; how far it is, and what it came to.

import * as api from "./api.js";
import { h, keyed, show } from "./dom.js";
import { moment, number, span } from "./format.js";
import { onChange, table } from "./live.js";
import { begin, complain, content, isOperator, state } from "./page.js";
import { makeForm } from "./simulate_form.js";
import { makeResults } from "./simulate_results.js";

const CHIPS = { queued: "", running: "warn", finished: "good", failed: "bad", cancelled: "" };
const isSeen = "simulations" in state.first;
const form = makeForm(ask);
const results = makeResults();
const status = h("p", { class: "summary", role: "status" });
const bar = h("div", { class: "progress", role: "progressbar", "aria-label": "Progress of the simulation", "aria-valuemin": 0, "aria-valuemax": 100 }, h("span", {}));
const said = h("span", { class: "said" });
const stop = h("button", { type: "button", class: "danger" }, "Cancel");
const running = h("section", { class: "card running", hidden: true, "aria-label": "Running" }, h("h2", {}), h("div", { class: "controls" }, bar, said, stop));
const rows = h("tbody", {});
const past = h("div", { class: "scroll", tabindex: 0 }, h("table", { class: "simulations" }, h("caption", {}, "Simulations, newest first"),
  h("thead", {}, h("tr", {}, ["Simulation", "Asked", "Policies", "Seeds", "State", ""].map((name, at) => h("th", { scope: "col", class: at === 3 ? "number" : null }, name)))), rows));
let chosen = new URLSearchParams(window.location.search).get("run");
let drawn = null;

if (isSeen) {
  show(content,
    h("p", {}, "Runs the production loop on a simulated clock against simulated GPUs, once per policy and seed, and sets the policies side by side. ", h("strong", {}, "Nothing of the cluster is touched.")),
    isOperator ? form.element : h("p", { class: "card" }, "Your token may look; asking for a simulation needs one of scope operator."), status, running, results.element, past);
} else {
  show(content, h("p", { class: "card" }, "Simulations belong to no project; your token is bound to projects. Somebody with a token for the whole cluster can run them, or anybody on their own machine by ", h("code", {}, "plimsoll simulate"), "."));
}

async function ask() {
  form.enable(false);
  try {
    const made = await api.send("POST", "/simulations", form.wanted());
    complain(null);
    choose(String(made.id));
    show(status, `Simulation ${made.id} waits for its turn.`);
  } catch (error) {
    complain(error.message);
  }
  form.enable(true);
}

async function cancel(id) {
  try {
    await api.send("DELETE", `/simulations/${id}`);
    complain(null);
  } catch (error) {
    complain(error.message);
  }
}

/** The one whose results are shown, also in the address, so that it can be sent to somebody. */
function choose(id) {
  chosen = id;
  window.history.replaceState(null, "", `?run=${id}`);
  draw();
}

const newest = () => [...table("simulations").keys()].sort((one, other) => other - one);

function draw() {
  const ids = newest();
  past.hidden = ids.length === 0;
  if (ids.length === 0) show(status, isOperator ? "No simulation yet: choose a scenario above and press Simulate. A shipped one takes a minute or two." : "No simulation yet.");
  keyed(rows, ids, row, fillRow);
  drawRunning(ids);
  drawResults(ids);
}

function row(id) {
  return h("tr", {}, h("th", { scope: "row" }), h("td", {}), h("td", { class: "wrap" }), h("td", { class: "number" }), h("td", { class: "detail" }),
    h("td", {}, h("span", { class: "links" })));
}

function fillRow(element, id) {
  const one = table("simulations").get(id);
  const [name, asked, policies, seeds, how, acts] = element.children;
  element.setAttribute("aria-current", String(id === chosen));
  show(name, `${id}: ${one.name} `, h("span", { class: "hint" }, span(one.duration_s)));
  show(asked, moment(one.created_at), h("div", { class: "hint" }, one.asked_by.replace(/^(token|person)\//, "by ")));
  show(policies, one.policies.join(", "));
  show(seeds, String(one.seeds));
  show(how, h("span", { class: `chip ${CHIPS[one.state]}` }, one.state === "running" ? `running, ${whole(one)} %` : one.state), one.error ? h("div", { class: "hint" }, one.error) : null);
  // What has the focus is not made again every second.
  if (acts.firstChild.dataset.state === one.state) return;
  acts.firstChild.dataset.state = one.state;
  show(acts.firstChild, actions(id, one));
}

function actions(id, one) {
  const isWaiting = one.state === "queued" || one.state === "running";
  if (isWaiting) return isOperator ? [h("button", { type: "button", class: "danger", "aria-label": `Cancel simulation ${id}`, onclick: () => cancel(id) }, "Cancel")] : [];
  if (one.state !== "finished") return [];
  return [
    h("button", { type: "button", "aria-label": `Show simulation ${id}`, onclick: () => choose(id) }, "Show"),
    h("a", { href: `/api/v1/simulations/${id}/report`, target: "_blank", rel: "noopener", "aria-label": `Report of simulation ${id}` }, "Report"),
  ];
}

const whole = (one) => Math.floor(100 * one.progress);

function drawRunning(ids) {
  const id = ids.find((each) => table("simulations").get(each).state === "running");
  running.hidden = id === undefined;
  if (id === undefined) return;
  const one = table("simulations").get(id);
  const runs = one.policies.length * one.seeds;
  show(running.firstChild, `Simulation ${id}: ${one.name}`);
  bar.setAttribute("aria-valuenow", whole(one));
  bar.setAttribute("aria-valuetext", `${whole(one)} % of ${runs} runs`);
  bar.firstChild.style.width = `${100 * one.progress}%`;
  show(said, `${whole(one)} % of ${runs === 1 ? "one run" : `${number(runs, 0)} runs`} of ${span(one.duration_s)}`);
  stop.hidden = !isOperator;
  stop.onclick = () => cancel(id);
}

/** Of the chosen one, else of the newest that has any; asked once, since they never change. */
async function drawResults(ids) {
  const known = table("simulations");
  const id = chosen !== null && known.has(chosen) ? chosen : ids.find((each) => known.get(each).state === "finished");
  sayState(id, known.get(id));
  if (id === undefined || known.get(id).state !== "finished") {
    drawn = null;
    return results.hide();
  }
  if (drawn === id) return null;
  drawn = id;
  try {
    const found = await api.get(`/simulations/${id}`);
    if (drawn === id) results.show(found);
  } catch (error) {
    drawn = null;
    complain(error.message);
  }
  return null;
}

const SAID = {
  queued: () => "waits for its turn; one runs at a time.",
  running: () => "runs.",
  finished: (one) => `has finished, ${moment(one.finished_at)}.`,
  failed: (one) => `failed: ${one.error}`,
  cancelled: () => "was cancelled.",
};

function sayState(id, one) {
  if (one === undefined) return;
  const text = `Simulation ${id} ${SAID[one.state](one)}`;
  if (status.textContent !== text) show(status, text);
}

async function loadExamples() {
  try {
    form.known(await api.get("/simulations/examples"));
    form.enable(isOperator);
  } catch (error) {
    complain(error.message);
  }
}

if (isSeen) {
  onChange("simulations", draw);
  if (isOperator) loadExamples();
}
begin(isSeen ? ["simulations"] : []);
