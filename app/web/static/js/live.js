// The feed: tables by topic, kept up to date, and those who draw them.

const tables = new Map();
const listeners = new Map();
const status = new Set();
let source = null;
let asked = [];

// The server says every 15 s that it is there; a connection may also die without a word.
const SILENT_MS = 40000;
const LOOK_MS = 1000;
let heardAt = Date.now();
let openedAt = heardAt;
/** Whether the server said that it cannot read what is shown, and nothing came since. */
let isTroubled = false;

/** When the server was last heard, in milliseconds. */
export const lastHeard = () => heardAt;

/** The items of a topic by key; empty until they are there. */
export const table = (topic) => tables.get(topic) ?? new Map();

/** Call `draw(changedKeys)` now and whenever the topic changes; changedKeys is null where everything may have. */
export function onChange(topic, draw) {
  listeners.set(topic, [...(listeners.get(topic) ?? []), draw]);
  if (tables.has(topic)) draw(null);
}

/** Call `tell(state, words)` with state live, lost or paused. */
export const onStatus = (tell) => status.add(tell);

/** Begin with what came with the page, then hear the feed; a page that is not seen hears nothing. */
export function start(first, topics) {
  for (const [topic, items] of Object.entries(first)) replace(topic, items);
  asked = topics;
  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : open()));
  window.addEventListener("pagehide", stop);
  window.setInterval(reopenIfSilent, LOOK_MS);
  open();
}

function open() {
  if (source !== null || asked.length === 0) return;
  openedAt = Date.now();
  source = new EventSource(`/live?${asked.map((topic) => `topic=${encodeURIComponent(topic)}`).join("&")}`);
  source.onopen = hear;
  source.addEventListener("beat", hear);
  source.onerror = () => {
    say("lost", "reconnecting");
    // A browser does not come back by itself where the answer was a refusal: the session may be over.
    if (source.readyState === EventSource.CLOSED) {
      close();
      window.setTimeout(checkSession, 3000);
    }
  };
  source.addEventListener("trouble", (event) => {
    isTroubled = true;
    say("lost", JSON.parse(event.data));
  });
  for (const topic of asked) source.addEventListener(topic, (event) => take(topic, JSON.parse(event.data)));
}

function hear() {
  // A beat says that the server is there, not that it can read what the page shows.
  if (isTroubled) return;
  heardAt = Date.now();
  say("live", "live");
}

function reopenIfSilent() {
  if (source === null || Date.now() - Math.max(heardAt, openedAt) < SILENT_MS) return;
  close();
  say("lost", "reconnecting");
  open();
}

function stop() {
  close();
  say("paused", "paused");
}

function close() {
  source?.close();
  source = null;
  isTroubled = false;
}

async function checkSession() {
  const answer = await fetch("/api/v1/auth/whoami").catch(() => null);
  if (answer?.status === 401) window.location.assign(`/login?next=${encodeURIComponent(window.location.pathname)}`);
  else open();
}

function take(topic, change) {
  isTroubled = false;
  hear();
  if (change.all) return replace(topic, change.set);
  const items = tables.get(topic) ?? new Map();
  for (const [key, item] of Object.entries(change.set)) items.set(key, item);
  for (const key of change.gone ?? []) items.delete(key);
  tables.set(topic, items);
  draw(topic, change.gone ? null : Object.keys(change.set));
}

function replace(topic, items) {
  tables.set(topic, new Map(Object.entries(items)));
  draw(topic, null);
}

// Once per frame, however many changes came: a thousand GPUs report in the same second. After the frame, not before it:
// what the page has already is painted before a thousand GPUs are drawn.
const due = new Map();
function draw(topic, changed) {
  if (due.size === 0) window.requestAnimationFrame(() => window.setTimeout(drawDue));
  const before = due.get(topic);
  due.set(topic, changed === null || before === null ? null : [...(before ?? []), ...changed]);
}

function drawDue() {
  const now = [...due];
  due.clear();
  for (const [topic, changed] of now) for (const listener of listeners.get(topic) ?? []) listener(changed);
}

function say(state, words) {
  for (const tell of status) tell(state, words);
}
