// New service: by a form, or from the YAML that `plimsoll apply` takes.

import * as api from "./api.js";
import { h, show } from "./dom.js";
import { begin, complain, content, isOperator } from "./page.js";
import { atFields, makeForm, makeProposals } from "./service_form.js";

const PLAIN = {
  apiVersion: "plimsoll/v1",
  kind: "Service",
  metadata: { name: "", project: "default" },
  spec: { network: "", slo: { latency_ms: null, percentile: 0.99 }, scaling: {}, priority: 10, mode: "auto" },
};
const EXAMPLE = `apiVersion: plimsoll/v1
kind: Service
metadata:
  name: chat
  project: default
spec:
  network: resnet50
  slo:
    latency_ms: 100
    percentile: 0.99
`;

let lines = null;
const form = makeForm({ manifest: structuredClone(PLAIN), isNew: true, save });
const text = h("textarea", { id: "yaml", rows: 14, spellcheck: "false", placeholder: EXAMPLE, "aria-describedby": "yaml-problem" });
const wrong = h("div", { id: "yaml-problem", role: "alert" });

if (isOperator) {
  show(content, h("div", { class: "columns" },
    h("section", { class: "card" }, h("h2", {}, "By its fields"), form.element),
    h("section", { class: "card" }, h("h2", {}, "Or from YAML"), h("p", {}, h("label", { for: "yaml" }, "A manifest as ", h("code", {}, "plimsoll apply"), " takes it. It fills the fields; then apply it there.")),
      text, wrong, h("div", { class: "controls" }, h("button", { onclick: read }, "Read into the fields")))));
  makeProposals().then((lists) => content.append(...lists));
} else {
  show(content, h("p", { class: "card" }, "Your token may look only. Somebody with a token of scope operator can apply a service, here or by ", h("code", {}, "plimsoll apply"), ". ", h("a", { href: "/services" }, "All services")));
}

async function save(manifest, _, query) {
  try {
    const made = await api.send("PUT", `/services/${encodeURIComponent(manifest.metadata.name)}${query}`, manifest, { "If-None-Match": "*" });
    window.location.assign(`/services/${made.metadata.name}`);
    return made;
  } catch (error) {
    const problems = error.problems ?? [];
    if (error.status === 412) throw Object.assign(error, { problems: [{ pointer: "/metadata/name", detail: "a service of this name is there already; change it on its own page" }] });
    sayInYaml(problems);
    throw error;
  }
}

/** The same next to the text, by line, where the fields came from it. */
function sayInYaml(problems) {
  if (lines === null) return;
  sayWrong(atFields(problems).map((each) => ({ line: lineOf(each.pointer ?? ""), problem: `${each.pointer ?? each.parameter}: ${each.detail}` })));
}

function lineOf(pointer) {
  let place = pointer;
  while (!(place in lines) && place !== "") place = place.slice(0, place.lastIndexOf("/"));
  return lines[place] ?? 1;
}

const sayWrong = (complaints) => show(wrong, complaints.length ? h("div", { class: "problem" }, complaints.map((each) => h("div", {}, `Line ${each.line}: ${each.problem}`))) : null);

async function read() {
  lines = null;
  const answer = await fetch("/new-service/yaml", { method: "POST", headers: { "Content-Type": "application/yaml" }, body: text.value }).catch(() => null);
  if (!answer?.ok) return complain("The control plane could not read the text; try again.");
  complain(null);
  const { documents, complaints } = await answer.json();
  const found = complaints.length ? complaints : objections(documents);
  sayWrong(found);
  if (found.length) return null;
  lines = documents[0].lines;
  const { status: _, ...manifest } = documents[0].value;
  return form.fill(filled(manifest));
}

function objections(documents) {
  if (documents.length === 0) return [{ line: 1, problem: "there is no manifest; paste one, e.g. the grey example" }];
  const [{ value, lines: of }, ...more] = documents;
  if (more.length) return [{ line: more[0].lines[""] ?? 1, problem: `here are ${documents.length} manifests; this page takes one, \`plimsoll apply -f\` any number` }];
  if (value?.kind !== "Service") return [{ line: of?.["/kind"] ?? 1, problem: `kind must be Service, not ${value?.kind ?? "missing"}` }];
  const parts = ["metadata", "spec"].filter((name) => typeof value[name] !== "object" || value[name] === null || Array.isArray(value[name]));
  return parts.map((name) => ({ line: of[`/${name}`] ?? 1, problem: `${name} must be an object with fields` }));
}

/** What the fields need to stand on; what the text says stays, also what has no field and what the API will refuse. */
function filled(manifest) {
  const { metadata, spec } = manifest;
  const isObject = (value) => typeof value === "object" && value !== null;
  return {
    ...manifest,
    metadata: { project: "default", ...metadata },
    spec: { priority: 10, mode: "auto", ...spec, slo: isObject(spec.slo) ? { percentile: 0.99, ...spec.slo } : {}, scaling: isObject(spec.scaling) ? snaked(spec.scaling) : {}, priority: PRIORITIES[spec.priority] ?? spec.priority ?? 10 },
  };
}

const PRIORITIES = { critical: 100, standard: 10, batch: 1 };

/** `minReplicas` is `min_replicas`, as in every manifest. */
const snaked = (fields) => Object.fromEntries(Object.entries(fields).map(([key, value]) => [key.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), value]));

begin();
