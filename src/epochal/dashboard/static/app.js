// The page: a list of queries and the details of the selected one. A stream of events from the
// server keeps both current.

import { PHASES, ago, clock, count, el, lines, millis, table, timeline, words } from "./charts.js";
import { browse } from "./browse.js";

const $ = (id) => document.getElementById(id);
const KEPT = 600;
const KINDS = { running: "good", failed: "bad", lost: "bad", healthy: "good", unhealthy: "bad", unreadable: "warn" };
const SIGNS = { running: "▶", failed: "✕", lost: "✕", stopped: "■", checkpoint: "◇", healthy: "✓", unhealthy: "✕", unreadable: "!", unknown: "…" };

let queries = [], chosen = null, follow = null, stream = null, dirty = false;
let epochs = [], reports = [], health = null, epoch = null, pinned = false;

function chip(node, value, text) {
  node.textContent = `${SIGNS[value] ?? ""} ${text ?? value}`;
  node.dataset.kind = KINDS[value] ?? "plain";
  node.dataset.value = value;
  return node;
}

function who(query) {
  return query.name || query.query_id || query.checkpoint;
}

function list() {
  $("none").hidden = queries.length > 0;
  $("queries").replaceChildren(...queries.map((query) => {
    const live = query.state === "running";
    const what = live ? `${count(query.input_rate)} rows/s · p99 ${millis(query.p99_ms)} · epoch ${query.epoch ?? "–"}`
      : `epoch ${query.epoch ?? "–"} · ${query.ended_ms ? ago(query.ended_ms) : query.checkpoint}`;
    const chips = el("span", { class: "chips" }, chip(el("span", { class: "chip" }), query.state), chip(el("span", { class: "chip" }), query.health));
    return el("li", {}, el("button", { type: "button", "data-key": query.key, "aria-current": String(query.key === chosen), onclick: () => choose(query.key) },
      el("span", { class: "who" }, who(query)), chips, el("span", { class: "what" }, what)));
  }));
}

function tile(name, value) {
  return el("div", {}, el("dt", {}, name), el("dd", { id: `tile-${name.replaceAll(/[ /]/g, "-")}`, title: String(value) }, value));
}

function about() {
  const query = queries.find((each) => each.key === chosen);
  $("detail").hidden = !query;
  if (!query) return;
  $("name").textContent = who(query);
  document.title = `${SIGNS[query.state] ?? ""} ${who(query)} – Epochal`;
  chip($("state"), query.state);
  chip($("health"), query.health, query.findings ? `${query.health}, ${query.findings} findings` : query.health);
  $("message").textContent = query.state === "lost" ? "The process of this query was killed, or its host went down." : query.message;
  $("error").hidden = !query.error;
  $("error").textContent = query.error ?? "";
  const report = reports.at(-1);
  $("tiles").replaceChildren(
    tile("rows/s", count(query.input_rate)), tile("latency p50", millis(query.p50_ms)), tile("latency p99", millis(query.p99_ms)),
    tile("epoch", query.epoch ?? "–"), tile("backlog", count(query.behind)), tile("state rows", count(query.state_rows)),
    tile("restarts", query.restarts ?? 0), tile("watermark", report?.watermark ? clock(Date.parse(report.watermark)) : "–"));
  const facts = [["checkpoint", query.checkpoint], ["query id", query.query_id], ["run id", query.run_id], ["started", query.started_ms ? `${clock(query.started_ms)}, ${ago(query.started_ms)}` : null],
    ["ended", query.ended_ms ? `${clock(query.ended_ms)}, ${ago(query.ended_ms)}` : null], ["sources", query.sources?.join(", ")], ["sink", query.sink],
    ["driver", query.pid ? `process ${query.pid} on ${query.host}, attempt ${query.attempt ?? "–"}` : null], ["known runs", query.runs > 1 ? query.runs : null]];
  $("facts").replaceChildren(...facts.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]));
}

function drawEpochs() {
  if (!pinned || !epochs.some((each) => each.epoch === epoch)) { epoch = epochs.at(-1)?.epoch ?? null; pinned = false; }
  timeline($("timeline"), epochs, epoch, (number) => { epoch = number; pinned = true; draw(); });
  const found = epochs.find((each) => each.epoch === epoch);
  $("epoch").textContent = found ? words(found) : "";
}

function drawCharts() {
  const points = (name) => reports.map((report) => [report.at_ms, report[name]]);
  lines($("latency").querySelector(".chart"), [{ name: "p50", kind: "l1", points: points("p50_ms") }, { name: "p99", kind: "l5", points: points("p99_ms") }], "ms");
  lines($("rate").querySelector(".chart"), [{ name: "arriving", kind: "l1", points: points("input_rate") }, { name: "processed while reading", kind: "l2", points: points("processed_rate") }], "rows/s");
  lines($("lag").querySelector(".chart"), [{ name: "behind", kind: "l5", points: points("behind") }], "");
  const report = reports.at(-1);
  table($("sources"), [["source"], ["behind", true], ["rows/s", true], ["committed up to"], ["available up to"]], (report?.sources ?? []).flatMap((source) => [
    [source.description, count(source.behind), count(source.rate), el("pre", {}, JSON.stringify(source.end)), el("pre", {}, JSON.stringify(source.latest))],
    ...source.partitions.map((part) => [`· ${part.partition}`, count(part.behind), "", "", ""])]));
}

function drawHealth() {
  const verdict = $("verdict");
  verdict.dataset.status = health?.status ?? "unknown";
  if (!health) { verdict.textContent = "Not checked yet."; table($("findings"), [["finding"]], []); return; }
  const at = health.checkpoint;
  const kept = at ? `${at.batches} batches, newest ${at.newest ?? "none"}, committed ${at.committed ?? "none"}; a restart would ${at.restart.action.replaceAll("_", " ")}${at.restart.batch_id === null ? "" : ` (batch ${at.restart.batch_id})`}. ` : "";
  verdict.replaceChildren(chip(el("span", { class: "chip" }), health.status), ` ${health.problem ?? kept}Checked at ${clock(health.checked_ms)} in ${millis(health.took_ms)}.`);
  if (!health.findings.length) { $("findings").replaceChildren(); return; }
  table($("findings"), [["severity"], ["finding"], ["file"], ["message"], ["remedy"]], health.findings.map((each) => [
    chip(el("span", { class: "chip" }), each.severity === "error" ? "unhealthy" : each.severity === "warning" ? "unreadable" : "unknown", each.severity), each.code, el("code", {}, each.path), each.message, each.remedy]));
}

function draw() {
  if (dirty) return;
  dirty = true;
  requestAnimationFrame(() => { dirty = false; about(); drawEpochs(); drawCharts(); drawHealth(); });
}

function choose(key) {
  if (key === chosen) return;
  chosen = key; epochs = []; reports = []; health = null; epoch = null; pinned = false;
  history.replaceState(null, "", `#${key}`);
  listen(); list(); draw(); browse(key);
}

function link(state, text) { $("link").dataset.state = state; $("link").textContent = text; }

function listen() {
  stream?.close();
  stream = new EventSource(`/api/events?key=${encodeURIComponent(chosen ?? "")}`);
  stream.addEventListener("open", () => link("live", "live"));
  stream.addEventListener("error", () => link("lost", "the dashboard does not respond; reconnecting"));
  stream.addEventListener("queries", (event) => {
    queries = JSON.parse(event.data);
    if (chosen === null) pick();
    const focused = document.activeElement?.dataset?.key;
    list(); draw();
    if (focused) document.querySelector(`#queries [data-key="${focused}"]`)?.focus();
  });
  stream.addEventListener("run", (event) => {
    const news = JSON.parse(event.data);
    if (news.key !== chosen) return;
    if (news.anew) { epochs = []; reports = []; }
    epochs = [...epochs, ...news.epochs].slice(-KEPT);
    reports = [...reports, ...news.reports].slice(-KEPT);
    draw();
  });
  stream.addEventListener("health", (event) => { const news = JSON.parse(event.data); if (news.key === chosen) { health = news; draw(); } });
}

function pick() {
  const named = (query) => [query.name, query.query_id, query.run_id].includes(follow);
  const remembered = queries.find((query) => query.key === location.hash.slice(1));
  const found = follow ? queries.find(named) : remembered ?? queries[0];
  if (found) choose(found.key);
  else if (follow) { $("none").hidden = false; $("none").textContent = `Waiting for ${follow}.`; }
}

function step(by) {
  const at = queries.findIndex((query) => query.key === chosen);
  const next = queries[Math.max(0, Math.min(queries.length - 1, at + by))];
  if (next) { choose(next.key); document.querySelector(`#queries [data-key="${next.key}"]`)?.focus(); }
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

const PANELS = ["epochs", "latency", "rate", "lag", "stores", "checkpoint", "browse"];
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "t") nextTheme();
  else if (event.key === "?") $("help").showModal();
  else if (/^[1-7]$/.test(event.key)) { const panel = $(PANELS[Number(event.key) - 1]); panel.focus(); panel.scrollIntoView(); }
});
$("timeline").addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (by) { event.preventDefault(); stepEpoch(by); }
});
$("theme").addEventListener("click", nextTheme);
$("keys").addEventListener("click", () => $("help").showModal());
window.addEventListener("resize", draw);
theme(THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");
$("phases").replaceChildren(...PHASES.map((name, index) => el("li", { class: `k${index + 1}` }, name)));

const first = await (await fetch("/api/queries")).json();
follow = first.follow;
queries = first.queries;
list();
pick();
if (chosen === null) listen();
