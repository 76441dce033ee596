// What is to be simulated: a shipped scenario or one's own, under which policies, how long, with how many seeds.

import { h, show } from "./dom.js";
import { number, span } from "./format.js";

const OWN = "own";
const SEEDS = [1, 2, 3, 5];
const EXAMPLE = `kind: Scenario
metadata: {name: mine}
spec:
  duration_s: 660
  warm_up_s: 60
  policies: [k8s_hpa, joint]
  fleet:
    - {name: t4, gpu_type: T4, nodes: 4}
  services:
    - name: classify
      network: resnet50
      slo: {latency_ms: 400, percentile: 0.98}
      load: {rate_rps: 60, spikes: [{start_s: 300, length_s: 60, factor: 4}]}
`;

/** A form: {element, wanted(), known(examples, policies, limits), enable(mayAsk)}; `ask()` is called when it is sent. */
export function makeForm(ask) {
  const which = h("select", { id: "scenario", onchange: fill });
  const about = h("p", { class: "hint about", id: "about" });
  const text = h("textarea", { id: "own", rows: 14, spellcheck: "false", placeholder: EXAMPLE, "aria-describedby": "own-hint" });
  const file = h("input", { id: "own-file", type: "file", accept: ".yaml,.yml,.json", onchange: upload });
  const own = h("div", { hidden: true },
    h("p", {}, h("label", { for: "own" }, "The scenario, as ", h("code", {}, "plimsoll simulate"), " takes it (YAML or JSON)")), text,
    h("p", { class: "hint", id: "own-hint" }, "It cannot name files. The grey text is an example; the documentation has every field (docs/simulate.md)."),
    h("p", {}, h("label", { for: "own-file" }, "Or from a file "), file));
  const boxes = h("div", { class: "boxes" });
  const duration = h("input", { id: "duration", type: "number", class: "figure", step: "any", inputmode: "decimal", "aria-describedby": "duration-hint" });
  const durationHint = h("span", { class: "hint", id: "duration-hint" });
  const seeds = h("select", { id: "seeds" });
  const send = h("button", { class: "primary", disabled: true }, "Simulate");
  const limit = h("span", { class: "hint" });
  const element = h("form", { class: "card simulate", onsubmit: (event) => { event.preventDefault(); ask(); } },
    h("div", { class: "controls" }, h("label", { for: "scenario" }, "Scenario"), which), about, own,
    h("fieldset", {}, h("legend", {}, "Policies"), boxes),
    h("div", { class: "controls" },
      h("span", {}, h("label", { for: "duration" }, "Simulated seconds "), duration, " ", durationHint),
      h("span", {}, h("label", { for: "seeds" }, "Seeds "), seeds)),
    h("div", { class: "controls" }, send, limit));
  let examples = new Map();
  let limits = null;

  function known(found) {
    examples = new Map(found.items.map((each) => [each.name, each]));
    limits = found.limits;
    show(which, found.items.map((each) => h("option", { value: each.name }, each.name)), h("option", { value: OWN }, "my own"));
    show(boxes, found.policies.map((name) => box(name)));
    show(limit, `At most ${limits.policies} policies, ${number(limits.duration_s, 0)} simulated seconds (${span(limits.duration_s)}), ${limits.gpus} GPUs and ${limits.services} services. One simulation runs at a time, at a lower priority than the control plane.`);
    fill();
  }

  function box(name) {
    return h("label", { class: "box" }, h("input", { type: "checkbox", name: "policy", value: name, onchange: bound }), ` ${name}`);
  }

  /** Whatever the scenario says itself. */
  function fill() {
    const example = examples.get(which.value);
    own.hidden = example !== undefined;
    const extra = (example?.policies ?? []).filter((name) => ![...boxes.querySelectorAll("input")].some((each) => each.value === name));
    for (const old of boxes.querySelectorAll("[data-own]")) old.remove();
    for (const name of extra) {
      const made = box(name);
      made.dataset.own = "";
      boxes.append(made);
    }
    for (const each of boxes.querySelectorAll("input")) each.checked = example?.policies.includes(each.value) ?? false;
    duration.value = example?.duration_s ?? "";
    duration.placeholder = "own";
    show(about, example ? `${example.title} (${example.services} services, ${example.gpus} GPUs)` : "Policies, time and seeds are those of the text, unless chosen here.");
    show(durationHint, example ? `${example.warm_up_s} s of warm-up and a multiple of ${example.step_s} s` : "");
    const counts = [...new Set([...SEEDS, example?.seeds.length ?? 1])].sort((one, other) => one - other);
    show(seeds, example ? null : h("option", { value: "" }, "its own"), counts.map((count) => h("option", { value: count }, String(count))));
    seeds.value = example ? example.seeds.length : "";
    bound();
  }

  /** No more boxes can be ticked than may be. */
  function bound() {
    const all = [...boxes.querySelectorAll("input")];
    const isFull = limits !== null && all.filter((each) => each.checked).length >= limits.policies;
    for (const each of all) each.disabled = isFull && !each.checked;
  }

  async function upload() {
    const [chosen] = file.files;
    if (chosen) text.value = await chosen.text();
  }

  /** The request; fields that are left as they are in one's own scenario are left out. */
  function wanted() {
    const example = examples.get(which.value);
    const policies = [...boxes.querySelectorAll("input:checked")].map((each) => each.value);
    const count = Number(seeds.value);
    const isSame = example !== undefined && count === example.seeds.length;
    return {
      ...(example ? { example: example.name } : { scenario: text.value }),
      ...(policies.length ? { policies } : {}),
      ...(duration.value === "" ? {} : { duration_s: Number(duration.value) }),
      ...(count && !isSame ? { seeds: Array.from({ length: count }, (_, at) => at + 1) } : {}),
    };
  }

  const enable = (mayAsk) => { send.disabled = !mayAsk; };
  return { element, wanted, known, enable };
}
