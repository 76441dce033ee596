// Overview: whether SLOs are kept, what it costs, what waits for a person, what changed, and every GPU at a glance.

import * as api from "./api.js";
import { h, show } from "./dom.js";
import { count, number, percent, usd } from "./format.js";
import { givenOn } from "./gpu_figures.js";
import { onChange, table } from "./live.js";
import * as changes from "./overview/changes.js";
import * as heatmap from "./overview/heatmap.js";
import * as slos from "./overview/slos.js";
import * as waiting from "./overview/waiting.js";
import { begin, complain, content } from "./page.js";
import { levelOf, statusSentence } from "./service_status.js";

const COSTS_MS = 60000;
const HOUR_MS = 3600000;

const headline = h("p", { class: "headline", role: "status" });
const tile = (title, href) => {
  const [value, hint] = [h("span", { class: "value" }, "–"), h("span", { class: "hint" }, "\u00a0")];
  return { element: h("a", { class: "tile", href }, h("span", { class: "name" }, title), value, hint), value, hint };
};
const tiles = {
  kept: tile("SLOs kept, last minute", "/services"),
  today: tile("Cost today (UTC)", "/cost"),
  saved: tile("Saved by sharing, 24 h", "/cost"),
  fleet: tile("GPUs in use", "/fleet"),
};
show(content, headline, h("div", { class: "tiles" }, Object.values(tiles).map((each) => each.element)),
  h("div", { class: "overview" }, slos.element, h("div", { class: "side" }, waiting.element, changes.element)), heatmap.element);

function fill(name, value, hint, level = "") {
  const place = tiles[name];
  place.value.className = `value ${level}`;
  if (place.value.textContent !== value) place.value.textContent = value;
  if (place.hint.textContent !== hint) place.hint.textContent = hint;
}

function drawServices() {
  const found = [...table("services")];
  const judged = found.filter(([, service]) => service.attainment !== null);
  const kept = judged.filter(([, service]) => service.attainment >= service.percentile);
  const atRisk = found.filter(([name, service]) => levelOf(name, service) === "bad").length;
  show(headline, found.length ? statusSentence(found) : empty());
  fill("kept", judged.length ? `${number(kept.length, 0)} of ${number(judged.length, 0)}` : "–",
    atRisk ? `${count(atRisk, "service")} at risk` : `${number(found.length - judged.length, 0)} without requests`, kept.length < judged.length ? "bad" : "");
  slos.draw();
  waiting.draw();
}

const empty = () => ["There is no service yet: ", h("a", { href: "/new-service" }, "add the first one"), table("fleet").size ? "." : ", and start plimsoll-agent on a GPU node."];

function drawFleet() {
  const fleet = [...table("fleet").values()];
  const used = fleet.filter((gpu) => gpu.parts.length > 0);
  const given = used.reduce((sum, gpu) => sum + givenOn(gpu), 0);
  fill("fleet", `${number(used.length, 0)} of ${number(fleet.length, 0)}`, used.length ? `${percent(given / (100 * used.length), 0)} of their SMs given` : "nothing runs");
  heatmap.draw();
  waiting.draw();
}

async function loadCosts() {
  try {
    // By project, since the sums are the same and there are far fewer of them than services.
    const found = await api.get("/costs", { by: "project", period: "24h" });
    const midnight = new Date(Date.parse(found.until) - HOUR_MS).setUTCHours(0, 0, 0, 0);
    const today = found.points.filter((point) => Date.parse(point.at) >= midnight).reduce((sum, point) => sum + point.cost_usd, 0);
    const saved = found.without_sharing_usd - found.cost_usd;
    const now = table("header").get("now")?.cost_usd_per_hour ?? null;
    fill("today", usd(today), now === null ? "no plan is in force" : `${usd(now)} per hour now`);
    fill("saved", usd(saved), found.without_sharing_usd ? `${percent(saved / found.without_sharing_usd, 0)} of what whole GPUs would cost` : "nothing was spent yet");
    complain(null);
  } catch (error) {
    complain(error.message);
  }
}

for (const topic of ["services", "service_status", "budgets"]) onChange(topic, drawServices);
for (const topic of ["fleet", "service_status"]) onChange(topic, drawFleet);
onChange("gauges", heatmap.drawGauges);
onChange("header", () => { waiting.look(); changes.look(); });
begin(["fleet", "gauges", "services", "service_status", "budgets"]);
loadCosts();
window.setInterval(() => { if (!document.hidden) loadCosts(); }, COSTS_MS);
