// What is told of one GPU: how much of it is given and used, what is wrong with it, and all of it in a few lines.

import { gib, number, watts } from "./format.js";
import { table } from "./live.js";

// Who serves comes first: while one replica takes over from another both are there, and the last is past the line.
const PLACES = { ready: 0, running: 0, starting: 1, draining: 2, swapping: 2, asleep: 2, failed: 3 };

/** Parts that occupy the GPU, in the order in which bars show them. */
export const inOrder = (parts) => parts.filter((part) => part.state in PLACES).sort((one, other) => PLACES[one.state] - PLACES[other.state]);

/** SM percent of who serves or runs. */
export const givenOn = (gpu) => gpu.parts.reduce((sum, part) => sum + (PLACES[part.state] === 0 ? part.sm_percent : 0), 0);

/** What is read now of a GPU; null where it is unknown. */
export function gaugesOf(id) {
  const [memory_used_mib, power_w, , busy_percent] = table("gauges").get(id) ?? [null, null, null, null];
  return { memory_used_mib, power_w, busy_percent };
}

/** Whether its agent told lately what is on it; without that an empty bar would say that nothing runs. */
export const isRead = (id) => table("gauges").has(id);

/** What is wrong with a GPU, in a word; null: nothing. */
export function trouble(id, gpu) {
  if (!gpu.healthy) return "unhealthy";
  if (!gpu.is_heard) return "silent";
  if (!isRead(id)) return "no reading";
  return gpu.cordoned ? "cordoned" : null;
}

/** All of it as lines of text. */
export function linesOf(id, gpu) {
  const gauges = gaugesOf(id);
  const busy = gauges.busy_percent === null ? "" : `, busy ${number(gauges.busy_percent, 0)} % of the time`;
  const parts = gpu.parts.map((part) => `${part.owner}: ${number(part.sm_percent, 0)} % SM, batch ${part.batch}, ${part.state}`);
  return [`${id} (${gpu.gpu_type})${trouble(id, gpu) ? `: ${trouble(id, gpu)}` : ""}`, `${number(givenOn(gpu), 0)} % of the SMs given${busy}`, ...parts,
    `memory ${gib(gauges.memory_used_mib)} of ${gib(gpu.memory_mib)}`, `power ${watts(gauges.power_w)} of ${watts(gpu.power_cap_w)}`];
}
