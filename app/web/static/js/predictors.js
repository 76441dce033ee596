// Predictors: fitted curves through what was measured, how far they are off, and what drifts of what is served.

import * as api from "./api.js";
import { h, show } from "./dom.js";
import { moment, number, signed } from "./format.js";
import { begin, complain, content, searchBox } from "./page.js";
import { offer, predictorChart } from "./predictor_chart.js";

const MOST = 500;
const WORDS = { latency_ms: "latency", interference: "interference", stranger_interference: "interference of strangers", power_w: "power", memory_mib: "memory" };
let serving = [];
let fits = [];

const summary = h("p", { class: "summary", role: "status" }, "Looking …");
const places = { serving: h("div", {}), fits: h("div", {}) };
const find = searchBox("network or GPU type", () => draw());
show(content, h("div", { class: "controls" }, find.element), summary, predictorChart, places.serving, places.fits);

/** Rows of a report as objects by column. */
async function report(name) {
  const found = await api.get(`/reports/${name}`, { limit: MOST });
  return found.rows.map((row) => Object.fromEntries(row.map((cell, at) => [found.columns[at], cell])));
}

async function load() {
  try {
    [serving, fits] = await Promise.all([report("fit_health"), report("fit_quality")]);
    complain(null);
    draw();
  } catch (error) {
    complain(error.message);
  }
}

const isWanted = (row) => `${row.network} ${row.gpu_type}`.toLowerCase().includes(find.text());
const share = (value) => (value === null ? "–" : `${number(value, 1)} %`);
const figure = (text) => h("td", { class: "number" }, text);

function draw() {
  const alarmed = serving.filter((row) => row.is_alarmed);
  show(summary, serving.length + fits.length === 0
    ? "Nothing was served or fitted yet. Predictions are held against measurements once a service runs; plimsoll samples send brings measurements of your own, plimsoll samples fit fits them."
    : alarmed.length === 0 ? "No prediction has drifted." : h("strong", { class: "bad" }, `Drifted: ${alarmed.slice(0, 5).map((row) => `${row.network} on ${row.gpu_type}`).join(", ")}${alarmed.length > 5 ? " …" : ""}. More room is planned there.`));
  offer(groupsWanted());
  show(places.serving, listed("Against what is served now", ["Network", "GPU type", "Known as", "State"], ["Correction", "± (1 σ)", "Error", "Alarm above", "Readings", "Until"], serving.filter(isWanted).map(healthRow), "Nothing of what is served was compared yet."));
  show(places.fits, listed("Fits in force", ["Network", "GPU type", "Of what", "Technique", "From"], ["Held-out error", "90 % below", "Training error", "Samples", "Version", "Made"], fits.filter(isWanted).map(fitRow), "No fit is in force: operating points are as profiled."));
}

/** What there may be curves of, by name, with how it holds against what is served. */
function groupsWanted() {
  const known = new Map(fits.filter((row) => row.quantity === "latency_ms" && isWanted(row)).map((row) => [`${row.network} ${row.gpu_type}`, { ...row, health: null }]));
  for (const row of serving.filter(isWanted)) known.set(`${row.network} ${row.gpu_type}`, { ...row, health: row });
  return [...known.keys()].sort().map((key) => known.get(key));
}

function listed(caption, names, figures, rows, empty) {
  const head = h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)), figures.map((name) => h("th", { scope: "col", class: "number" }, name))));
  return h("div", { class: "scroll", tabindex: 0 }, h("table", {}, h("caption", {}, caption), head,
    h("tbody", {}, rows.length ? rows : h("tr", {}, h("td", { colspan: names.length + figures.length, class: "hint" }, empty)))));
}

const healthRow = (row) => h("tr", {}, h("th", { scope: "row" }, row.network), h("td", {}, row.gpu_type), h("td", {}, `${row.provenance}, version ${row.profile_version}`),
  h("td", {}, h("span", { class: `chip ${row.is_alarmed ? "bad" : "good"}` }, row.is_alarmed ? `drifted since ${moment(row.alarm_since)}` : "holds")),
  figure(signed(row.correction_percent)), figure(share(row.uncertainty_percent)), figure(share(row.error_percent)),
  figure(share(row.band_percent)), figure(number(row.readings, 0)), figure(moment(row.seen_until)));

const fitRow = (row) => h("tr", {}, h("th", { scope: "row" }, row.network), h("td", {}, row.gpu_type), h("td", {}, WORDS[row.quantity] ?? row.quantity), h("td", {}, row.technique.replaceAll("_", " ")), h("td", {}, row.source || "–"),
  figure(share(row.cross_validated_error_percent)), figure(share(row.cross_validated_error_percent_p90)), figure(share(row.training_error_percent)),
  figure(number(row.samples, 0)), figure(row.version), figure(moment(row.created_at)));

load();
begin();
