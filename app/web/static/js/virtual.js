// Long tables: only the rows that are on the screen, and some around them, are in the document. What is left out is as
// high as it would be, so that scrolling is as with all of them, and readers are told of how many rows each is one.

import { h, keyed } from "./dom.js";

const ALL_UP_TO = 40;
const MARGIN_PX = 500;
const GUESS_PX = 48;
const PASSES = 3;
const NEIGHBOURS = 4;

/**
 * Rows of `body`, a tbody in a table: {show(keys), reveal(key)}. `make(key)` makes one and `update(row, key)` fills it, as
 * for `keyed`. Few rows are all there.
 */
export function virtualRows(body, make, update) {
  const [before, after] = [h("tbody", { class: "left-out", "aria-hidden": "true" }), h("tbody", { class: "left-out", "aria-hidden": "true" })];
  const heights = new Map();
  let keys = [];
  let isDue = false;
  let width = 0;

  /** What a row is high, or most likely is: as high as the mean of those that were seen. */
  function guess() {
    const sum = [...heights.values()].reduce((total, height) => total + height, 0);
    return heights.size ? sum / heights.size : GUESS_PX;
  }

  function draw() {
    isDue = false;
    if (!body.isConnected) return;
    place(body, before, after);
    forgetOldWidth();
    // Rows may turn out lower than they were thought to be, and leave room for more of them.
    for (let pass = 0; pass < PASSES && drawOnce(); pass += 1);
    if (keys.length > ALL_UP_TO) keepColumns(body);
  }

  function drawOnce() {
    const { first, last, above, below } = keys.length <= ALL_UP_TO ? { first: 0, last: keys.length, above: 0, below: 0 } : range();
    // Who is at a row with the keyboard stays there, wherever the page is scrolled to, and Tab finds the next ones.
    const shown = [...new Set([...span(first, last), ...nearFocus()])].sort((one, other) => one - other);
    const high = (places) => places.reduce((sum, at) => sum + (heights.get(keys[at]) ?? 0), 0);
    before.style.height = `${Math.max(0, above - high(shown.filter((at) => at < first)))}px`;
    after.style.height = `${Math.max(0, below - high(shown.filter((at) => at >= last)))}px`;
    keyed(body, shown.map((at) => keys[at]), make, update);
    // The line of the heads is the first.
    shown.forEach((at, place) => body.children[place].setAttribute("aria-rowindex", at + 2));
    body.closest("table").setAttribute("aria-rowcount", keys.length + 1);
    return measure();
  }

  /** The row that has the focus, and its neighbours. */
  function nearFocus() {
    const row = document.activeElement?.closest("tr");
    const at = row?.parentElement === body ? keys.indexOf(row.dataset.key) : -1;
    return at < 0 ? [] : span(Math.max(0, at - NEIGHBOURS), Math.min(keys.length, at + NEIGHBOURS + 1));
  }

  /** Whether any row is not as high as was thought. */
  function measure() {
    let isNew = false;
    for (const row of body.children) {
      const height = row.offsetHeight;
      if (height === 0 || Math.abs((heights.get(row.dataset.key) ?? -1) - height) < 1) continue;
      heights.set(row.dataset.key, height);
      isNew = true;
    }
    return isNew && keys.length > ALL_UP_TO;
  }

  /** Which rows are in sight, and how high all above and below them are. */
  function range() {
    const frame = body.closest(".scroll")?.getBoundingClientRect() ?? { top: 0, bottom: window.innerHeight };
    const start = before.getBoundingClientRect().top;
    const from = Math.max(0, frame.top) - start - MARGIN_PX;
    const to = Math.min(window.innerHeight, frame.bottom) - start + MARGIN_PX;
    const usual = guess();
    let [offset, first, last, above] = [0, null, 0, 0];
    keys.forEach((key, at) => {
      const end = offset + (heights.get(key) ?? usual);
      if (end > from && first === null) [first, above] = [at, offset];
      if (offset < to) last = at + 1;
      offset = end;
    });
    if (first === null) [first, above] = [Math.max(0, keys.length - 1), offset - usual];
    last = Math.max(last, Math.min(keys.length, first + 1));
    const shown = keys.slice(first, last).reduce((sum, key) => sum + (heights.get(key) ?? usual), 0);
    return { first, last, above, below: Math.max(0, offset - above - shown) };
  }

  function forgetOldWidth() {
    const now = body.closest("table").parentElement.clientWidth;
    if (now === width) return;
    width = now;
    heights.clear();
    for (const head of body.closest("table").querySelectorAll("thead th")) head.style.minWidth = "";
  }

  function soon() {
    if (isDue || keys.length <= ALL_UP_TO) return;
    isDue = true;
    window.requestAnimationFrame(draw);
  }

  // Captured: a frame that scrolls does not tell its ancestors otherwise.
  window.addEventListener("scroll", soon, { capture: true, passive: true });
  window.addEventListener("resize", soon);
  // At once: the next Tab may come before the next frame.
  body.addEventListener("focusin", () => { if (keys.length > ALL_UP_TO) draw(); });

  return {
    show(fresh) {
      keys = fresh;
      draw();
    },
    /** Bring a row into sight and return it; null: there is none. */
    reveal(key) {
      const at = keys.indexOf(key);
      if (at < 0) return null;
      const frame = body.closest(".scroll");
      const top = keys.slice(0, at).reduce((sum, each) => sum + (heights.get(each) ?? guess()), 0);
      if (frame) frame.scrollTop = top;
      draw();
      const row = [...body.children].find((each) => each.dataset.key === key) ?? null;
      row?.scrollIntoView({ block: "center" });
      return row;
    },
  };
}

const span = (first, end) => Array.from({ length: end - first }, (_, at) => first + at);

function place(body, before, after) {
  if (body.previousElementSibling !== before) body.before(before);
  if (body.nextElementSibling !== after) body.after(after);
}

/** Columns get no narrower while rows come and go: figures would jump from side to side. They do where all have no room. */
function keepColumns(body) {
  const whole = body.closest("table");
  const heads = [...whole.querySelectorAll("thead th")];
  if (whole.offsetWidth > whole.parentElement.clientWidth + 1) {
    for (const head of heads) head.style.minWidth = "";
    return;
  }
  const widths = heads.map((head) => Math.ceil(head.getBoundingClientRect().width));
  heads.forEach((head, at) => {
    if (widths[at] > Number.parseFloat(head.style.minWidth || 0)) head.style.minWidth = `${widths[at]}px`;
  });
}
