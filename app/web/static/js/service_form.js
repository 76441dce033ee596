// The form of a service: to change one, and to make one. What the API refuses is said at the field that it is about.

import * as api from "./api.js";
import { h, show } from "./dom.js";

const MODES = ["auto", "approve", "advise", "off"];
const percentOf = (value) => Number((100 * value).toFixed(4));
const shareOf = (text) => (text === "" ? null : Number((Number(text) / 100).toFixed(6)));
const numberOf = (text) => (text === "" ? null : Number(text));
const listOf = (text) => text.split(/[\s,]+/).filter(Boolean);

/** Fields: where they stand in the manifest, what they are called, and how they are read. */
const time = (of, field, title) => ({ of, pointer: `/spec/slo/${field}`, title, unit: "ms", type: "number", min: 0.001, step: "any", read: numberOf, required: true });
const CHANGEABLE = [
  time("inference", "latency_ms", "SLO latency"),
  time("llm", "ttft_ms", "First token within"),
  time("llm", "itl_ms", "Further tokens each within"),
  { pointer: "/spec/slo/percentile", title: "Requests that must meet it", unit: "%", type: "number", min: 50, max: 99.9, step: "any", read: shareOf, write: percentOf, required: true },
  { pointer: "/spec/scaling/min_replicas", title: "Least replicas", type: "number", min: 0, step: 1, read: (text) => numberOf(text) ?? 0 },
  { pointer: "/spec/scaling/max_replicas", title: "Most replicas", hint: "empty: any number", type: "number", min: 1, step: 1, read: numberOf },
  { pointer: "/spec/priority", title: "Priority", hint: "critical 100, standard 10, batch 1", type: "number", min: 0, step: "any", read: (text) => numberOf(text) ?? 10 },
  { pointer: "/spec/mode", title: "Mode", choices: MODES, hint: "auto: plans are pushed; approve: they wait for you; off: not planned" },
];
const NEW = [
  { pointer: "/metadata/name", title: "Name", type: "text", required: true, hint: "lower-case letters, digits and -" },
  { pointer: "/metadata/project", title: "Project", type: "text", list: "known-projects", required: true },
  { pointer: "/spec/network", title: "Network", type: "text", list: "known-networks", required: true, hint: "it needs a profile on a GPU type" },
];
const ALLOWED = { pointer: "/spec/gpu_types/allowed", title: "Only on GPU types", type: "text", list: "known-gpu-types", hint: "names with commas; empty: all", read: (text) => (listOf(text).length ? listOf(text) : null), write: (value) => value.join(", ") };

/** {element, fill(manifest), isTouched(), notePresent(manifest), complain(words, problems)}; `save(manifest, generation, query)`. */
export function makeForm({ manifest, isNew, save }) {
  const all = (isNew ? [...NEW, ...CHANGEABLE, ALLOWED] : CHANGEABLE).map(makeField);
  let fields = all;
  const said = h("div", { role: "alert" });
  const done = h("p", { role: "status" });
  const force = h("input", { type: "checkbox" });
  const forced = h("label", { class: "controls", hidden: true }, force, " Accept an SLO that no operating point can meet");
  const button = h("button", { class: "primary" }, isNew ? "Apply" : "Save");
  const element = h("form", { class: "form", novalidate: true, onsubmit: submit }, said, h("div", { class: "fields" }, all.map((field) => field.element)), forced, h("div", { class: "controls" }, button), done);
  let base = manifest;
  let isTouched = false;
  element.addEventListener("input", () => { isTouched = true; show(done); });

  function fill(fresh) {
    base = fresh;
    isTouched = false;
    const kind = fresh.spec.kind ?? "inference";
    fields = all.filter((field) => (field.of ?? kind) === kind);
    for (const field of all) field.element.hidden = !fields.includes(field);
    for (const field of fields) field.write(at(fresh, field.pointer));
    complain(null);
    forced.hidden = true;
    force.checked = false;
  }

  function complain(words, found = [], more = null) {
    const problems = atFields(found);
    for (const field of fields) field.complain(problems.filter((each) => isOf(field, each, fields)).map(inForm).join("; "));
    const rest = problems.filter((each) => !fields.some((field) => isOf(field, each, fields)));
    const lines = problems.length ? rest.map((each) => `${each.pointer ?? each.parameter}: ${each.detail}`) : [words];
    show(said, words === null || (problems.length && rest.length === 0) ? null : h("div", { class: "problem" }, lines.map((line) => h("div", {}, line)), more));
    if (problems.some((each) => each.may_force)) forced.hidden = false;
    fields.find((field) => field.isWrong())?.focus();
  }

  async function submit(event) {
    event.preventDefault();
    const wrong = fields.map((field) => ({ pointer: field.pointer, detail: objection(field) })).filter((each) => each.detail);
    if (wrong.length) return complain("", wrong);
    button.disabled = true;
    try {
      const saved = await save(written(), base.metadata.generation, force.checked && !forced.hidden ? "?force=true" : "");
      fill(saved);
      show(done, `Saved as generation ${saved.metadata.generation}.`);
    } catch (error) {
      const reload = error.present ? h("button", { type: "button", onclick: () => fill(error.present) }, "Take what it is now") : null;
      complain(error.message, error.problems ?? [], reload);
    } finally {
      button.disabled = false;
    }
  }

  /** The manifest that the form began with, with what its fields say now. */
  function written() {
    const made = structuredClone(base);
    for (const field of fields) put(made, field.pointer, field.read());
    for (const name of ["generation", "created_at"]) delete made.metadata[name];
    delete made.status;
    return made;
  }

  fill(manifest);
  const notePresent = (fresh) => {
    if (!isTouched && fresh.metadata.generation > (base.metadata.generation ?? 0)) fill(fresh);
  };
  return { element, fill, isTouched: () => isTouched, notePresent, complain };
}

/** What is wrong with a field in its own unit; the API would speak of the manifest's. */
function objection({ required, text, min = -Infinity, max = Infinity, type, unit = "" }) {
  if (text() === "") return required ? "is needed" : null;
  const value = Number(text());
  if (type !== "number" || (value >= min && value <= max)) return null;
  return `must be ${max === Infinity ? `at least ${min}` : `from ${min} to ${max}`} ${unit}`.trim();
}

/** What is wrong, with the advice for those who fill in this form. */
const inForm = ({ detail, may_force }) => (may_force ? `${detail}; tick the box below to accept it anyway` : detail);

/** The name stands in the path, too, where it is no field: what is wrong with it is said once. */
export function atFields(problems) {
  const placed = problems.map((each) => (each.parameter === "name" ? { ...each, pointer: "/metadata/name" } : each));
  return placed.filter((each, at) => placed.findIndex((one) => one.pointer === each.pointer && one.detail === each.detail) === at);
}

/** A problem is of the field that it names, of the first one below an object that it names, or of the field around it. */
function isOf(field, problem, fields) {
  const about = problem.pointer ?? "";
  if (about === "") return false;
  if (field.pointer === about || about.startsWith(`${field.pointer}/`)) return true;
  return fields.find((each) => each.pointer.startsWith(`${about}/`)) === field;
}

let count = 0;

function makeField(field) {
  const id = `field-${(count += 1)}`;
  const problem = h("span", { class: "bad", id: `${id}-problem` });
  const hint = h("span", { class: "hint", id: `${id}-hint` }, field.hint ?? "");
  const { type, min, max, step, list } = field;
  const input = field.choices
    ? h("select", { id }, field.choices.map((value) => h("option", { value }, value)))
    : h("input", { id, type, min, max, step, list, autocomplete: "off", spellcheck: "false", required: field.required, inputmode: type === "number" ? "decimal" : null });
  input.setAttribute("aria-describedby", `${id}-hint ${id}-problem`);
  const unit = field.unit ? h("span", { class: "hint" }, field.unit) : null;
  return {
    ...field,
    element: h("div", { class: "field" }, h("label", { for: id }, field.title), h("div", {}, input, " ", unit), hint, problem),
    text: () => input.value.trim(),
    read: () => (field.read ?? ((text) => text))(input.value.trim()),
    write: (value) => { input.value = value === null || value === undefined ? "" : (field.write ?? String)(value); },
    complain: (words) => { problem.textContent = words; input.setAttribute("aria-invalid", words ? "true" : "false"); },
    isWrong: () => problem.textContent !== "",
    focus: () => input.focus(),
  };
}

const at = (manifest, pointer) => pointer.split("/").slice(1).reduce((value, key) => value?.[key], manifest);

function put(manifest, pointer, value) {
  const keys = pointer.split("/").slice(1);
  let place = manifest;
  for (const key of keys.slice(0, -1)) place = place[key] ??= {};
  place[keys.at(-1)] = value;
}

/** Lists of names that fields propose. */
export async function makeProposals() {
  const names = async (path) => (await api.list(path)).map((each) => each.metadata.name);
  const lists = { "known-projects": "/projects", "known-networks": "/networks", "known-gpu-types": "/gpu-types" };
  const made = Object.entries(lists).map(async ([id, path]) => h("datalist", { id }, (await names(path).catch(() => [])).map((value) => h("option", { value }))));
  return Promise.all(made);
}
