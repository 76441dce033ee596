// What all pages share: their state, the line at the top, the theme, and how the feed is doing.

import { byId, h, show } from "./dom.js";
import { count, moment, number, usd } from "./format.js";
import * as live from "./live.js";
import { install } from "./palette.js";

/** {page, argument, scope, first}: what the server wrote into the page. */
export const state = JSON.parse(byId("state").textContent);

/** Whether the token may change what the cluster does. */
export const isOperator = state.scope === "operator" || state.scope === "admin";

/** Where the page draws. */
export const content = byId("content");

/** Hear the feed; `topics` besides `header`, with their arguments, e.g. `service/chat`. */
export function begin(topics = []) {
  live.onChange("header", drawHeader);
  live.onStatus(drawConnection);
  byId("theme").addEventListener("click", turnTheme);
  install();
  // The feed calls a topic about one thing after it, too: `service/chat`.
  const named = Object.entries(state.first).map(([name, items]) => [topics.find((topic) => topic.startsWith(`${name}/`)) ?? name, items]);
  live.start(Object.fromEntries(named), ["header", ...topics]);
}

/** Say what went wrong, at the top of the page, until `null` is said. */
export function complain(words) {
  const place = byId("problem");
  place.hidden = words === null;
  show(place, words ?? "");
}

let isUnread = false;

/** The same of what the page itself reads: the feed makes it read again and again, and why an action was refused stays. */
export function complainOfReading(words) {
  if (words !== null || isUnread) complain(words);
  isUnread = words !== null;
}

/** A search in the page's own list: {element, text()}; it stands in the address, so that a link shows the same rows. */
export function searchBox(placeholder, draw) {
  const input = h("input", { type: "search", placeholder, value: new URL(window.location).searchParams.get("find"), oninput: () => {
    const address = new URL(window.location);
    if (input.value) address.searchParams.set("find", input.value);
    else address.searchParams.delete("find");
    window.history.replaceState(null, "", address);
    draw();
  } });
  return { element: h("label", {}, "Find ", input), text: () => input.value.trim().toLowerCase() };
}

const WORDS = { auto: "decides and acts", approve: "asks before it acts", advise: "advises only", off: "is off" };

function drawHeader() {
  const now = live.table("header").get("now");
  if (!now) return;
  // What the loop did meanwhile is not shown: a link that has the focus keeps it.
  const { newest_plan, newest_event, decided_at, ...shown } = now;
  const fresh = JSON.stringify(shown);
  if (byId("header").seen === fresh) return;
  byId("header").seen = fresh;
  const paused = now.paused ? h("span", { class: "chip warn" }, "paused") : null;
  const waiting = now.waiting ? h("a", { class: "chip warn", href: "/plans" }, `${now.waiting} to approve`) : null;
  const plan = now.plan_id ? [h("a", { href: `/plans/${now.plan_id}` }, `plan ${now.plan_id}`), " (", h("a", { href: `/why/${now.plan_id}`, "aria-label": `Why plan ${now.plan_id} is so` }, "why"), ")"] : ["no plan yet"];
  show(
    byId("header"),
    item("In force", ...plan, now.planned_at ? ` since ${moment(now.planned_at)}` : ""),
    item("Cost", now.cost_usd_per_hour === null ? "–" : `${usd(now.cost_usd_per_hour)}/h`),
    now.plan_id ? lesser("Gap to the proven bound", now.gap_percent === null ? "none proven" : `${number(now.gap_percent, 1)} %`) : null,
    item("Policy", h("a", { href: "/policy" }, `${now.policy} ${WORDS[now.mode] ?? now.mode}`)),
    lesser("Fleet", `${count(now.gpus, "GPU")} for ${count(now.services, "service")}`),
    paused,
    waiting,
  );
}

const item = (name, ...values) => h("span", { class: "fact" }, h("span", { class: "name" }, name), " ", ...values);

/** What a phone has no room for. */
const lesser = (name, value) => h("span", { class: "fact lesser" }, h("span", { class: "name" }, name), ` ${value}`);

// Shorter losses are those of a server that is updated: the page would only flicker.
const STALE_MS = 4000;
let staleTimer = null;

/** What is shown while nothing comes is old: said at the top, with since when, and its figures lose their colours. */
function drawStale(kind, words) {
  if (kind !== "lost") {
    window.clearTimeout(staleTimer);
    staleTimer = null;
    document.body.classList.remove("stale");
    byId("stale").hidden = true;
    return;
  }
  staleTimer ??= window.setTimeout(() => {
    document.body.classList.add("stale");
    byId("stale").hidden = false;
    show(byId("stale"), `Not updated since ${moment(new Date(live.lastHeard()).toISOString())}: ${words === "reconnecting" ? "the control plane does not answer" : words}. Reconnecting.`);
  }, STALE_MS);
}

function drawConnection(kind, words) {
  drawStale(kind, words);
  const chip = byId("connection");
  chip.className = `chip ${kind === "live" ? "good" : kind === "lost" ? "bad" : ""}`;
  if (chip.textContent !== words) chip.textContent = words;
}

function turnTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
  document.dispatchEvent(new CustomEvent("themechange"));
}
