// Policy: how the loop decides, whether it acts by itself, and who changed that; an operator pauses it, an admin switches it.

import * as api from "./api.js";
import { differences } from "./event_table.js";
import { h, show } from "./dom.js";
import { moment } from "./format.js";
import { onChange, table } from "./live.js";
import { begin, complain, complainOfReading, content, isOperator, state } from "./page.js";

const PATH = "/policies/default";
const SHOWN = 20;
const MODES = {
  auto: "decides and acts by itself",
  approve: "proposes plans, and a person approves them",
  advise: "only shows what it would do",
  off: "decides nothing",
};
const isAdmin = state.scope === "admin";
const now = h("section", { class: "card", "aria-label": "Now" });
const change = h("section", { class: "card", "aria-label": "Change it" });
const settings = h("dl", { class: "facts" });
const versions = h("tbody", {});
let isEdited = false;
let present = null;
let names = [];
let seen = null;

show(content, now, isAdmin ? change : null,
  h("details", { class: "card" }, h("summary", {}, "All settings"), settings),
  h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Versions" }, h("table", {}, h("caption", {}, "Its versions, newest first"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "number" }, "Version"), ["When", "Who", "What changed"].map((title) => h("th", { scope: "col" }, title)))), versions)));

async function load() {
  try {
    const [policy, history] = await Promise.all([api.get(PATH), api.get(`${PATH}/versions`, { limit: SHOWN + 1 })]);
    if (isAdmin && names.length === 0) names = (await api.get("/simulations/examples")).policies;
    complainOfReading(null);
    present = policy;
    draw(history.items);
  } catch (error) {
    complainOfReading(error.message);
  }
}

function draw(history) {
  const { spec, status } = present;
  show(now, h("p", { class: "headline" }, spec.paused ? h("strong", { class: "warn" }, "Paused: nodes keep what they have, and nothing new is decided.") : `${spec.policy} ${MODES[spec.mode]}.`),
    h("div", { class: "controls" }, isOperator ? pauseButton(spec.paused) : null,
      h("span", { class: "hint" }, status.created_at ? `Version ${status.version}, since ${moment(status.created_at)}, by ${status.created_by}` : "The defaults, which have not been changed yet")));
  // No one's choices are taken from them while the policy changes elsewhere; saved, they are refused with a reason.
  if (isAdmin && !isEdited && !change.contains(document.activeElement)) show(change, form(present));
  show(settings, Object.entries(spec).map(([name, value]) => [h("dt", {}, name), h("dd", {}, words(value))]));
  const rows = history.slice(0, SHOWN).map((version, at) => row(version, history[at + 1]));
  show(versions, rows.length ? rows : h("tr", {}, h("td", { colspan: 4, class: "hint" }, "No version was saved yet: the defaults are in force.")));
}

const words = (value) => (value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value));

function row(version, before) {
  const found = before ? differences(before.spec, version.spec) : [];
  const text = found.map((each) => `${each.field}: ${words(each.before ?? null)} → ${words(each.after ?? null)}`).join("; ");
  return h("tr", {}, h("td", { class: "number" }, version.status.version), h("td", {}, moment(version.status.created_at)), h("td", {}, version.status.created_by),
    h("td", { class: "wrap" }, text || (before ? "nothing" : "the first that is shown")));
}

function pauseButton(isPaused) {
  const turn = async (event) => {
    event.target.disabled = true;
    await api.send("POST", `${PATH}/${isPaused ? "resume" : "pause"}`).then(() => { complain(null); return load(); }, (error) => complain(error.message));
    event.target.disabled = false;
  };
  return h("button", { type: "button", class: isPaused ? "primary" : "danger", onclick: turn }, isPaused ? "Resume" : "Pause");
}

function form(policy) {
  const { spec } = policy;
  const choice = (name, known, chosen) => h("select", { name }, known.map((value) => h("option", { value, selected: value === chosen }, value)));
  const said = h("p", { role: "status" });
  const about = h("p", { class: "hint" }, `In mode ${spec.mode} it ${MODES[spec.mode]}.`);
  const policies = names.includes(spec.policy) ? names : [spec.policy, ...names];
  const element = h("form", { onsubmit: (event) => { event.preventDefault(); save(policy, new FormData(element), said); }, onchange: () => { isEdited = true; show(about, `In mode ${element.mode.value} it ${MODES[element.mode.value]}.`); } },
    h("h2", {}, "Change it"),
    h("div", { class: "controls" }, h("label", {}, "Policy ", choice("policy", policies, spec.policy)), h("label", {}, "Mode ", choice("mode", Object.keys(MODES), spec.mode)),
      h("label", {}, h("input", { type: "checkbox", name: "approve_switch", checked: spec.approve_switch }), " the first plan of another policy waits for a person"),
      h("button", { class: "primary" }, "Save")), about, said);
  return element;
}

/** What no one else changed meanwhile: the version that the form shows is the one that is replaced. */
async function save(policy, chosen, said) {
  const { metadata, spec, apiVersion, kind } = policy;
  const body = { apiVersion, kind, metadata: { name: metadata.name, labels: metadata.labels, annotations: metadata.annotations }, spec: { ...spec, policy: chosen.get("policy"), mode: chosen.get("mode"), approve_switch: chosen.has("approve_switch") } };
  try {
    await api.send("PUT", PATH, body, { "If-Match": `"${metadata.generation}"` });
    await redrawn();
    complain(null);
  } catch (error) {
    const text = error.status === 412 ? "Somebody else changed the policy meanwhile: this page shows theirs now. Choose again." : error.message;
    show(said, h("span", { class: "bad" }, text));
    if (error.status === 412) { await redrawn(); complain(text); }
  }
}

async function redrawn() {
  isEdited = false;
  document.activeElement.blur();
  await load();
}

onChange("header", () => {
  const header = table("header").get("now");
  const fresh = JSON.stringify([header?.policy, header?.mode, header?.paused]);
  if (fresh !== seen) load();
  seen = fresh;
});
begin();
