// The page: a list of queries and the details of the selected one. A stream of events from the
// server keeps both current. A query with a run shows its epochs; a checkpoint alone, its batches.

import { $, ago, chip, clock, command, count, el, isSelected, millis, moment, plural, sign, span, status, zone } from "./format.js";
import { PHASES, lines, timeline, words } from "./charts.js";
import { ask, browse } from "./browse.js";
import { drawGrowth, drawHealth, drawHistory, drawSources, drawWatermark, historyTiles } from "./checkpoint.js";
import { list, listWith, neighbour } from "./queries.js";

const KEPT = 600;
let queries = [], chosen = null, follow = null, stream = null, dirty = false, timers = [];
let epochs = [], reports = [], restarts = [], health = null, history = null, lag = null, epoch = null, pinned = false;

const query = () => queries.find((each) => each.key === chosen);
const live = () => Boolean(query()?.run_id);

function about() {
  const shown = query();
  $("detail").hidden = !shown;
  $("start").hidden = queries.length > 0;
  document.body.dataset.queries = queries.length;
  if (!shown) return;
  if ($("name").textContent !== shown.name) $("name").textContent = shown.name;
  document.title = `${sign(shown.status)} ${shown.name} – Epochal`;
  $("state").hidden = shown.state === "checkpoint";
  chip(shown.state, shown.state, $("state"));
  chip(shown.health, shown.findings ? `${shown.health}, ${plural(shown.findings, "finding")}` : status(shown.health), $("health"));
  $("message").textContent = shown.state === "lost" ? "The process of this query was killed, or its host went down." : shown.message;
  $("message").hidden = !$("message").textContent;
  $("error").hidden = !shown.error;
  $("error").textContent = shown.error ?? "";
  const report = reports.at(-1);
  const tiles = live() ? [
    ["rows/s", count(shown.input_rate), report ? `${count(report.processed_rate)} while reading` : ""], ["latency p50", millis(shown.p50_ms), "cut to commit"], ["latency p99", millis(shown.p99_ms), report?.max_ms ? `highest ${millis(report.max_ms)}` : ""],
    ["epoch", shown.epoch ?? "–", shown.newest_ms ? `committed ${ago(shown.newest_ms)}` : ""], ["backlog", count(shown.behind), shown.behind === null ? "unknown, see Sources" : "not committed yet"], ["state rows", report && shown.state_rows === null ? "none" : count(shown.state_rows), report && shown.state_rows === null ? "stateless query" : ""],
    ["restarts", shown.restarts ?? 0, restarts.length ? `last ${ago(restarts.at(-1))}` : ""], ["watermark", report?.watermark_ms ? span(Date.now() - report.watermark_ms) : "none", shown.late_rows ? `${count(shown.late_rows)} rows came too late` : report?.watermark_ms ? `behind now, at ${moment(report.watermark_ms)}` : "no event time"],
  ] : historyTiles(shown, history, lag, health);
  $("tiles").replaceChildren(...tiles.map(([name, value, more]) => el("div", {}, el("dt", {}, name), el("dd", { id: `tile-${name.replaceAll(/[ /]/g, "-")}` }, value), el("dd", { class: "more" }, more))));
  const facts = [["checkpoint", shown.checkpoint], ["query id", shown.query_id], ["run id", shown.run_id], ["started", shown.started_ms ? `${moment(shown.started_ms)}, ${ago(shown.started_ms)}` : null],
    ["ended", shown.ended_ms ? `${moment(shown.ended_ms)}, ${ago(shown.ended_ms)}` : null], ["sources", shown.sources?.join(", ")], ["sink", shown.sink],
    ["state", health?.checkpoint?.operators.map((each) => `${each.name ?? `operator ${each.operator_id}`}, ${each.partitions} partitions (${each.provider ?? "no files"})`).join("; ")],
    ["driver", shown.pid ? `process ${shown.pid} on ${shown.host}, attempt ${shown.attempt ?? "–"}` : null], ["known runs", shown.runs > 1 ? shown.runs : null]];
  const text = JSON.stringify(facts);
  if ($("facts").drawn === text || isSelected($("facts"))) return;
  $("facts").drawn = text;
  $("facts").replaceChildren(...facts.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
}

function panels() {
  for (const panel of document.querySelectorAll("[data-for]")) panel.hidden = (panel.dataset.for === "live") !== live();
  for (const id of ["growth", "watermark"]) $(id).classList.toggle("wide", !live());
}

function drawEpochs() {
  if (!pinned || !epochs.some((each) => each.epoch === epoch)) { epoch = epochs.at(-1)?.epoch ?? null; pinned = false; }
  timeline($("timeline"), epochs, epoch, (number) => { epoch = number; pinned = true; draw(); });
  const found = epochs.find((each) => each.epoch === epoch);
  $("epoch").setAttribute("aria-live", pinned && document.activeElement === $("timeline") ? "polite" : "off");
  $("epoch").textContent = found ? words(found) : "";
}

function drawLive() {
  const points = (name) => reports.map((report) => [report.at_ms, report[name]]);
  const options = { marks: restarts, empty: "No reports yet." };
  drawEpochs();
  lines($("latency").querySelector(".chart"), [{ name: "p50", kind: "l1", points: points("p50_ms") }, { name: "p99", kind: "l5", points: points("p99_ms") }, { name: "highest", kind: "l6", dashed: true, points: points("max_ms") }], { ...options, unit: "time" });
  lines($("rate").querySelector(".chart"), [{ name: "arriving", kind: "l1", points: points("input_rate") }, { name: "processed while reading", kind: "l2", points: points("processed_rate") }], options);
  lines($("lag-chart"), [{ name: "behind", kind: "l5", points: points("behind") }], { ...options, empty: "No source reports its end." });
  drawGrowth(reports.filter((each) => each.state_rows !== null).map((each) => ({ at_ms: each.at_ms, rows: each.state_rows })), reports.some((each) => each.state_rows !== null), restarts);
  drawWatermark(points("behind_ms"), null, restarts);
  drawSources(reports.at(-1)?.sources ?? []);
}

function draw() {
  if (dirty) return;
  dirty = true;
  requestAnimationFrame(() => {
    dirty = false;
    about();
    if (!query()) return;
    panels();
    drawHealth(health, query());
    if (live()) drawLive();
    else { drawHistory(query(), history); drawSources((lag ?? history)?.sources ?? []); }
  });
}

// Asks again and again while this query is shown.
function poll(path, seconds, use) {
  const mine = chosen;
  const again = async () => {
    if (mine !== chosen) return;
    if (!live()) { try { const found = await ask(path, {}, mine); if (mine === chosen) { use(found); draw(); } } catch { /* `verify` says what is wrong */ } }
    if (mine === chosen) timers.push(setTimeout(again, 1000 * (document.hidden ? 5 * seconds : seconds)));
  };
  again();
}

function choose(key) {
  if (key === chosen) return;
  chosen = key; epochs = []; reports = []; restarts = []; health = null; history = null; lag = null; epoch = null; pinned = false;
  for (const timer of timers.splice(0)) clearTimeout(timer);
  window.history.replaceState(null, "", `#${key}`);
  listen(); list(queries, chosen); draw(); browse(key, query()?.unit ?? "batch");
  poll("history", 2, (found) => { history = found; });
  poll("lag", 3, (found) => { lag = found; });
}

function link(state, text) { $("link").dataset.state = state; $("link").textContent = text; }

function listen() {
  stream?.close();
  stream = new EventSource(`/api/events?key=${encodeURIComponent(chosen ?? "")}`);
  stream.addEventListener("open", () => link("live", "live"));
  stream.addEventListener("error", () => { if ($("link").dataset.state !== "lost") link("lost", `the dashboard does not respond since ${clock(Date.now())}; if you have stopped it, start it again and open its new link`); });
  stream.addEventListener("queries", (event) => {
    queries = JSON.parse(event.data);
    if (chosen === null || !query()) { chosen = null; pick(); }
    list(queries, chosen); draw();
    if (query()) browse(chosen, query().unit);
  });
  stream.addEventListener("run", (event) => {
    const news = JSON.parse(event.data);
    if (news.key !== chosen) return;
    if (news.anew) { epochs = []; reports = []; }
    epochs = [...epochs, ...news.epochs].slice(-KEPT);
    reports = [...reports, ...news.reports].slice(-KEPT);
    restarts = news.restarts;
    draw();
  });
  stream.addEventListener("health", (event) => { const news = JSON.parse(event.data); if (news.key === chosen) { health = news; draw(); } });
}

function pick() {
  const named = (each) => [each.name, each.query_id, each.run_id].includes(follow);
  const remembered = queries.find((each) => each.key === location.hash.slice(1));
  const first = ["attention", "running", "idle", "unchecked"].map((group) => queries.find((each) => each.group === group)).find(Boolean);
  const found = follow ? queries.find(named) : remembered ?? first;
  $("waiting").hidden = Boolean(found) || !follow;
  if (found) choose(found.key);
  else if (follow) $("waiting").textContent = `Waiting for ${follow}.`;
}

function step(by) {
  const key = neighbour(by);
  if (key) { choose(key); document.querySelector(`#queries [data-key="${key}"]`)?.focus(); }
}

function stepEpoch(by) {
  const at = epochs.findIndex((each) => each.epoch === epoch);
  const next = epochs[Math.max(0, Math.min(epochs.length - 1, at + by))];
  if (next) { epoch = next.epoch; pinned = epoch !== epochs.at(-1).epoch; draw(); }
}

const THEMES = ["system", "light", "dark"];
function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = name;
  $("theme").textContent = `Theme: ${name}`;
  localStorage.setItem("theme", name);
}
const nextTheme = () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("theme") ?? "system") + 1) % THEMES.length]);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "t") nextTheme();
  else if (event.key === "/") { event.preventDefault(); $("search").focus(); }
  else if (event.key === "?") $("help").showModal();
  else if (/^[1-9]$/.test(event.key)) {
    const panel = [...document.querySelectorAll("#detail > .card")].filter((each) => !each.hidden)[Number(event.key) - 1];
    panel?.focus(); panel?.scrollIntoView();
  }
});
$("timeline").addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (by) { event.preventDefault(); stepEpoch(by); }
  else if (event.key === "Escape") { pinned = false; draw(); }
});
$("theme").addEventListener("click", nextTheme);
$("keys").addEventListener("click", () => $("help").showModal());
window.addEventListener("resize", draw);
theme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");
$("phases").replaceChildren(...PHASES.map((name, index) => el("li", { class: `k${index + 1}` }, name)));
for (const place of document.querySelectorAll("[data-command]")) place.replaceChildren(command(place.dataset.command));
listWith(choose);

const first = await (await fetch("/api/queries")).json();
follow = first.follow;
queries = first.queries;
$("runs").textContent = first.runs;
$("zone").textContent = `Times are in your time zone, ${zone()}.`;
pick();
list(queries, chosen);
draw();
if (chosen === null) listen();
