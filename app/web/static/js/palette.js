// Ctrl-K or ⌘K: go to a page, a service, a node or a plan by a few letters of its name; "/" goes to the page's own search.

import * as api from "./api.js";
import { byId, h, show } from "./dom.js";
import { stateChip, STATES } from "./plan_states.js";

const MOST = 12;
const PLANS = 50;
let targets = null;
let found = [];
let chosen = 0;

const input = h("input", { type: "text", role: "combobox", "aria-label": "Go to", "aria-expanded": "true", "aria-controls": "palette-list", "aria-autocomplete": "list", placeholder: "page, service, node or plan", spellcheck: "false", autocomplete: "off", oninput: () => { chosen = 0; draw(); }, onkeydown: press });
const list = h("ul", { id: "palette-list", role: "listbox", "aria-label": "Where to go" });
const dialog = h("dialog", { class: "palette", "aria-label": "Go to" }, input, list,
  h("p", { class: "hint" }, "Arrows choose, Enter goes there, Escape closes."));
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

/** Make it ready, and its button. */
export function install() {
  document.body.append(dialog);
  byId("go-to").addEventListener("click", open);
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if (dialog.open) dialog.close();
      else open();
    } else if (event.key === "/" && !event.target.closest?.("input, textarea, select, dialog")) {
      const search = document.querySelector('main input[type="search"]');
      if (!search) return;
      event.preventDefault();
      search.focus();
    }
  });
}

function open() {
  dialog.showModal();
  input.value = "";
  chosen = 0;
  targets ??= pages();
  draw();
  load();
}

const pages = () => [...document.querySelectorAll("nav a")].map((link) => ({ kind: "page", name: link.textContent, href: link.getAttribute("href") }));

/** Names are asked for when somebody wants to go somewhere; whatever a token may not see is left out. */
async function load() {
  const all = await Promise.all([
    api.list("/services").then((items) => items.map(({ metadata }) => ({ kind: "service", name: metadata.name, href: `/services/${metadata.name}` }))),
    api.list("/nodes").then((items) => items.map(({ metadata }) => ({ kind: "node", name: metadata.name, href: `/nodes#${metadata.name}` }))),
    api.get("/plans", { limit: PLANS, state: STATES.filter((each) => each !== "kept") }).then(({ items }) => items.map((plan) => ({ kind: "plan", name: `${plan.id}`, chip: stateChip(plan), href: `/plans/${plan.id}` }))),
  ].map((asked) => asked.catch(() => [])));
  targets = [...pages(), ...all.flat()];
  draw();
}

/** What begins with the letters comes before what only holds them, and pages before the rest. */
function draw() {
  const text = input.value.trim().toLowerCase();
  const rank = (target) => {
    const name = target.name.toLowerCase();
    if (name.startsWith(text) || `${target.kind} ${name}`.startsWith(text)) return 0;
    return name.includes(text) ? 1 : 2;
  };
  found = targets.map((target) => ({ target, rank: rank(target) })).filter((each) => each.rank < 2)
    .sort((one, other) => one.rank - other.rank).slice(0, MOST).map((each) => each.target);
  chosen = Math.max(0, Math.min(chosen, found.length - 1));
  show(list, found.length ? found.map(option) : h("li", { class: "hint", role: "option", "aria-selected": "false", "aria-disabled": "true" }, "No match."));
  if (found.length) input.setAttribute("aria-activedescendant", `palette-${chosen}`);
  else input.removeAttribute("aria-activedescendant");
}

const option = (target, at) => h("li", { role: "option", id: `palette-${at}`, "aria-selected": at === chosen ? "true" : "false", onclick: () => go(target) },
  h("span", { class: "hint" }, target.kind), h("span", { class: "grow" }, target.name), target.chip ?? null);

function press(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && found.length) {
    event.preventDefault();
    chosen = (chosen + step + found.length) % found.length;
    draw();
  } else if (event.key === "Enter" && found.length) {
    event.preventDefault();
    go(found[chosen]);
  }
}

function go(target) {
  const isHere = new URL(target.href, window.location.href).pathname === window.location.pathname;
  dialog.close();
  window.location.assign(target.href);
  // A node on the page of nodes that is open: the address alone changes, and the page reads it when it begins.
  if (isHere) window.location.reload();
}
