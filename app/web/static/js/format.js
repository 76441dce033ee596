// Figures as people read them; null is a dash everywhere.

const DASH = "–";
const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** 1234.5 → "1,234.5": three figures that count, no more. */
export function number(value, digits = null) {
  if (!known(value)) return DASH;
  const places = digits ?? (Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2);
  return value.toLocaleString("en-GB", { minimumFractionDigits: digits === null ? 0 : places, maximumFractionDigits: places });
}

/** "1 GPU", "1,000 GPUs". */
export const count = (value, noun) => `${number(value, 0)} ${noun}${value === 1 ? "" : "s"}`;

/** Money to the cent, or further where a cent is too coarse. */
export function usd(value, digits = 2) {
  return known(value) ? `$${Number(value).toLocaleString("en-GB", { minimumFractionDigits: digits, maximumFractionDigits: digits })}` : DASH;
}

/** 0.98765 → "98.77 %". */
export const percent = (ratio, digits = 2) => (known(ratio) ? `${number(100 * ratio, digits)} %` : DASH);

/** 12.34 → "+12.3 %": a difference that is in per cent already. */
export const signed = (value) => (known(value) ? `${value > 0 ? "+" : value < 0 ? "−" : ""}${number(Math.abs(value), 1)} %` : DASH);

export const ms = (value) => (known(value) ? `${number(value)} ms` : DASH);
export const rps = (value) => (known(value) ? `${number(value)}/s` : DASH);
export const gib = (mib) => (known(mib) ? `${number(mib / 1024)} GiB` : DASH);
export const watts = (value) => (known(value) ? `${number(value, 0)} W` : DASH);

/** What took a moment: "0.57 s", to the hundredth. */
export const seconds = (value) => (!known(value) ? DASH : value < 0.005 ? "< 0.01 s" : `${number(value, 2)} s`);

/** "12 s", "3 min", "2 h": how long, roughly. */
export function span(seconds) {
  if (!known(seconds)) return DASH;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

/** A moment in the reader's time zone, with the date where it is not today. */
export function moment(iso) {
  if (!iso) return DASH;
  const at = new Date(iso);
  const time = at.toLocaleTimeString("en-GB");
  return at.toDateString() === new Date().toDateString() ? time : `${at.toLocaleDateString("en-CA")} ${time}`;
}
