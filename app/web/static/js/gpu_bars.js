// GPUs as bars of what they carry, for plans: what is there in one, and what differs between two.

import { SERIES } from "./charts.js";
import { h } from "./dom.js";
import { number } from "./format.js";

/** A colour for a name, the same on every page. */
export function colourOf(name) {
  let sum = 0;
  for (const letter of name) sum = (31 * sum + letter.codePointAt(0)) >>> 0;
  return SERIES[sum % SERIES.length];
}

/** One GPU of a plan as a bar; `changed` are keys (see `keyOf`) of parts to be marked. */
export function planBar(gpu, changed = new Set(), mark = "") {
  const parts = partsOf(gpu);
  return h("span", { class: "bar sm" }, parts.map((part) => {
    const element = h("span", { class: `part tinted ${changed.has(part.key) ? mark : ""}`, width_percent: part.sm_percent, title: part.words },
      part.sm_percent >= 15 ? part.name : "");
    element.style.setProperty("--colour", colourOf(part.name));
    return element;
  }));
}

/** Parts of a GPU with a key that is the same where nothing changed. */
export function partsOf(gpu) {
  const replicas = (gpu?.replicas ?? []).map((replica) => part(replica.service, replica, gpu));
  const tasks = (gpu?.tasks ?? []).filter((task) => task.is_resident).map((task) => part(task.name, task, gpu));
  return [...replicas, ...tasks];
}

function part(name, each, gpu) {
  return {
    name,
    sm_percent: each.sm_percent,
    key: `${name} ${each.sm_percent} ${each.batch} ${gpu.clock_mhz}`,
    words: `${name}: ${number(each.sm_percent, 0)} % SM, batch ${each.batch}, ${number(gpu.clock_mhz, 0)} MHz`,
  };
}

/** GPUs that carry something else after than before: [{id, gpu_type, before, after, gone, come}]. */
export function differences(before, after) {
  const ids = [...new Set([...(before ?? []), ...(after ?? [])].map((gpu) => gpu.id))].sort();
  const of = (gpus) => new Map((gpus ?? []).map((gpu) => [gpu.id, gpu]));
  const [old, fresh] = [of(before), of(after)];
  return ids
    .map((id) => {
      const [was, is] = [old.get(id), fresh.get(id)];
      return { id, gpu_type: (is ?? was).gpu_type, before: was, after: is, gone: lost(was, is), come: lost(is, was) };
    })
    .filter((each) => each.gone.size + each.come.size > 0);
}

/** Keys of parts that the one has more of than the other. */
function lost(one, other) {
  const left = partsOf(other).map((each) => each.key);
  const found = new Set();
  for (const { key } of partsOf(one)) {
    const at = left.indexOf(key);
    if (at < 0) found.add(key);
    else left.splice(at, 1);
  }
  return found;
}
