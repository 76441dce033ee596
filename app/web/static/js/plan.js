// One plan: what it costs and changes, as a picture; a person says yes or no to it here.

import * as api from "./api.js";
import { h, show } from "./dom.js";
import { moment, number, rps, seconds, usd } from "./format.js";
import { differences, planBar } from "./gpu_bars.js";
import { onChange, table } from "./live.js";
import { begin, complain, complainOfReading, content, isOperator, state } from "./page.js";
import { solutionText, stateChip, wasInForce } from "./plan_states.js";

const MOST = 60;
let plan = null;
let before = null;
let all = false;
let drawn = null;

async function load() {
  try {
    plan = await api.get(`/plans/${state.argument}`);
    const diff = await api.get(`/plans/${plan.id}/diff`).catch(() => null);
    before = diff?.before ? await api.get(`/plans/${diff.before}`) : null;
    complainOfReading(null);
    // Who is about to roll back is not disturbed by what becomes of other plans.
    const fresh = JSON.stringify([plan, diff, all]);
    if (fresh !== drawn) draw(diff);
    drawn = fresh;
  } catch (error) {
    complainOfReading(error.message);
  }
}

function draw(diff) {
  const changed = differences(before?.gpus, plan.gpus);
  show(content, facts(diff), decide(), rollBack(), plan.violations.length ? violations() : null,
    plan.gpus === null ? null : h("section", { class: "card" }, h("h2", {}, before ? `What it changes against plan ${before.id}` : "What it starts"), picture(changed)),
    diff?.changes.length ? changes(diff.changes) : null, plan.steps.length ? steps() : null);
}

function facts(diff) {
  const rows = [
    ["State", [stateChip(plan), plan.reason ? ` ${plan.reason}` : ""]],
    ["Solution", solutionText(plan)],
    ["Made", `${moment(plan.at)} by ${plan.policy}${plan.method ? ` (${plan.method})` : ""} in ${seconds(plan.seconds)}`],
    ["Cost", `${usd(plan.cost_usd_per_hour)} per hour${against(diff)}`],
    ["Proven bound", plan.lower_bound_usd_per_hour === null ? "none was proven" : `${usd(plan.lower_bound_usd_per_hour)} per hour: no plan that serves as much costs less (gap ${number(plan.gap_percent, 1)} %)`],
    ["Serves", served()],
  ];
  return h("section", { class: "card" }, h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("p", {}, h("a", { href: `/why/${plan.id}` }, "Why it is so"), " · ", h("a", { href: "/plans" }, "all plans")));
}

/** How much dearer or cheaper than the plan before. */
function against(diff) {
  const was = diff?.cost_before_usd_per_hour ?? null;
  if (was === null) return "";
  const off = plan.cost_usd_per_hour - was;
  return Math.abs(off) < 0.005 ? ", as much as the one before" : `, ${usd(Math.abs(off))} ${off > 0 ? "more" : "less"} than the one before`;
}

/** The arrival rates that it was made for; what it was before is why most plans differ. */
function served() {
  const old = new Map((before?.demands ?? []).map((each) => [each.service, each.arrival_rate_rps]));
  const was = ({ service, arrival_rate_rps }) => (old.has(service) && rps(old.get(service)) !== rps(arrival_rate_rps) ? ` (before ${rps(old.get(service))})` : "");
  return plan.demands.map((each) => `${each.service} ${rps(each.arrival_rate_rps)}${was(each)}`).join(", ") || "nothing";
}

function decide() {
  if (!isOperator || !["proposed", "approved"].includes(plan.state)) return null;
  const act = (verb) => async (event) => {
    event.target.disabled = true;
    await api.send("POST", `/plans/${plan.id}/${verb}`).then(() => { complain(null); return load(); }, (error) => complain(error.message));
    event.target.disabled = false;
  };
  return h("div", { class: "controls" },
    plan.state === "proposed" ? h("button", { class: "primary", onclick: act("approve") }, "Approve: put it in force") : null,
    h("button", { class: "danger", onclick: act("reject") }, "Reject"));
}

/** A plan that was in force may be again: once asked, once confirmed, since it changes what runs. */
function rollBack() {
  if (!isOperator || plan.state === "target" || !wasInForce(plan)) return null;
  const place = h("div", { class: "controls", role: "status" });
  const ask = () => show(place, h("span", {}, "It is bound to the GPUs of now and pushed by the next tick. A policy in mode auto is put in mode approve, else it would undo this."),
    h("button", { class: "danger", onclick: go }, `Yes, put plan ${plan.id} back in force`), h("button", { onclick: offer }, "No"));
  const offer = () => show(place, h("button", { onclick: ask }, "Roll back to this plan"));
  const go = async (event) => {
    event.target.disabled = true;
    try {
      const told = await api.send("POST", `/plans/${plan.id}/restore`);
      complain(null);
      show(place, h("p", {}, "Restored as ", h("a", { href: `/plans/${told.plan.id}` }, `plan ${told.plan.id}`), told.mode === told.mode_before ? "." : "; the policy is now in mode approve.",
        told.warnings.length ? h("span", { class: "warn" }, ` It does not keep today: ${told.warnings.join("; ")}`) : ""));
    } catch (error) {
      complain(error.message);
      offer();
    }
  };
  offer();
  return place;
}

function picture(changed) {
  if (changed.length === 0) return h("p", {}, "No GPU carries anything else; only rates or weights differ.");
  const list = all ? changed : changed.slice(0, MOST);
  return [h("div", { class: "scroll", tabindex: 0 }, h("table", { class: "picture" },
    h("thead", {}, h("tr", {}, ["GPU", "Before", "After"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, list.map((each) => h("tr", {}, h("th", { scope: "row" }, `${each.id} `, h("span", { class: "hint" }, each.gpu_type)),
      h("td", {}, each.before ? planBar(each.before, each.gone, "leaves") : "–"), h("td", {}, each.after ? planBar(each.after, each.come, "comes") : "–")))))),
    h("p", { class: "hint" }, "Framed parts are what changes: they leave on the left and come on the right."),
    changed.length > list.length ? h("button", { onclick: () => { all = true; load(); } }, `Show all ${changed.length} GPUs`) : null];
}

function changes(list) {
  const figures = (each) => `${number(each.sm_percent, 0)} % SM, batch ${each.batch}, ${number(each.clock_mhz, 0)} MHz`;
  return h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, "Replicas that it has more or fewer of"),
    h("thead", {}, h("tr", {}, ["Service", "GPU type", "Setting"].map((name) => h("th", { scope: "col" }, name)), ["Before", "After"].map((name) => h("th", { scope: "col", class: "number" }, name)))),
    h("tbody", {}, list.map((each) => h("tr", {}, h("td", {}, each.service), h("td", {}, each.gpu_type), h("td", {}, figures(each)),
      h("td", { class: "number" }, each.before), h("td", { class: "number" }, each.after))))));
}

const violations = () => h("section", { class: "card" }, h("h2", { class: "bad" }, "Rules that the checker found broken"),
  h("ul", {}, plan.violations.map((each) => h("li", {}, `${each.rule} (${each.severity}) at ${each.where}: ${each.detail}`))));

const steps = () => h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, "How it was found"),
  h("thead", {}, h("tr", {}, ["Technique", "Method", "Status"].map((name) => h("th", { scope: "col" }, name)), h("th", { scope: "col", class: "number" }, "Took"), h("th", { scope: "col" }, "Said"))),
  h("tbody", {}, plan.steps.map((step) => h("tr", {}, h("td", {}, step.technique), h("td", {}, step.method), h("td", {}, step.status),
    h("td", { class: "number" }, step.seconds > 0 ? seconds(step.seconds) : "–"), h("td", { class: "wrap" }, step.messages.join("; ")))))));

// Its state may change while somebody looks: another person approves it, or the loop puts it in force.
let seen = null;
onChange("header", () => {
  const now = table("header").get("now");
  const fresh = JSON.stringify([now?.plan_id, now?.waiting]);
  if (fresh !== seen) load();
  seen = fresh;
});
begin();
