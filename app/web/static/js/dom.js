// Elements from data. Text is always text: nothing here reads HTML, so no name can become a script.

/** An element: h("td", {class: "number", title: "why"}, "12", h("b", {}, "3")). Null children are left out. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same of SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Replace what an element holds. */
export function show(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** The element of an id that is in every page's template. */
export const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "width_percent") element.style.width = `${value}%`;
    else if (name === "left_percent") element.style.left = `${value}%`;
    else element.setAttribute(name, value === true ? "" : value);
  }
  return show(element, ...children);
}

/** Keep a container's children as they are for keys that stay, so that focus and scrolling survive a redraw. */
export function keyed(container, keys, make, update) {
  const wanted = new Set(keys);
  // First, so that those that stay are not moved around them: a row that is moved loses the focus.
  for (const child of [...container.children]) if (!wanted.has(child.dataset.key)) child.remove();
  const there = new Map([...container.children].map((child) => [child.dataset.key, child]));
  let before = null;
  for (const key of keys) {
    let child = there.get(key);
    if (child === undefined) {
      child = make(key);
      child.dataset.key = key;
    }
    const place = before === null ? container.firstElementChild : before.nextElementSibling;
    if (place !== child) container.insertBefore(child, place);
    update(child, key);
    before = child;
  }
}
