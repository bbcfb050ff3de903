// Shows what a checkpoint says about its query: health with the commands that mend it, and the
// history of its batches.

import { $, ago, bytes, capital, chip, clock, command, count, el, many, millis, moment, plural, prose, span, status as wordFor, whole } from "./format.js";
import { lines, table } from "./charts.js";

function restart(plan, unit, findings) {
  const at = `${unit} ${whole(plan.batch_id)}`;
  if (plan.action === "fail") return `A restart would fail${plan.reason ? `: ${plan.reason}` : ""}.`;
  // The plan follows from the logs alone. Whether the state can be loaded is another question.
  const unless = findings.some((each) => each.severity === "error" && each.path.startsWith("state/")) ? ", unless it fails to load the state" : "";
  return plan.action === "re-run" ? `A restart would run ${at} again${unless}.` : `A restart would ${plan.action} with ${at}${unless}.`;
}

export function drawHealth(health, query) {
  const verdict = $("verdict");
  const status = health?.status ?? "unknown";
  verdict.dataset.status = status;
  if (!health) { verdict.replaceChildren("Not checked yet."); $("findings").replaceChildren(); return; }
  const at = health.checkpoint;
  const parts = [];
  if (health.problem) parts.push(health.problem);
  else if (status === "healthy") parts.push("No problem was found. The output of a file sink was not checked.");
  else parts.push(`${plural(query.findings, "finding")}.`);
  if (at) {
    const reached = at.newest === null ? `There is no ${query.unit} yet` : `Newest ${query.unit} ${whole(at.newest)}, committed ${at.committed === null ? "none" : whole(at.committed)}`;
    parts.push(`${reached}. ${restart(at.restart, query.unit, health.findings)}`);
  }
  parts.push(`Checked at ${clock(health.checked_ms)}.`);
  verdict.replaceChildren(chip(status, wordFor(status)), " ", ...prose(parts.join(" ")));
  const drawn = JSON.stringify(health.findings);
  if ($("findings").drawn === drawn) return; // a button that has the focus must not be replaced
  $("findings").drawn = drawn;
  const notes = health.findings.filter((each) => each.severity === "info");
  const mends = health.findings.some((each) => each.commands.length && each.severity !== "info");
  $("findings").replaceChildren(...groups(health.findings.filter((each) => each.severity !== "info")),
    mends ? el("p", { class: "hint" }, "Stop the query before you run a command. OUTPUT is the directory that it writes files to; if there is none, write --no-file-sink in place of --sink OUTPUT. To see only its plan, leave out --execute; ", el("code", {}, "epochal checkpoint undo"), " takes a change back.") : "",
    notes.length ? el("details", {}, el("summary", {}, plural(notes.length, "note")), ...groups(notes)) : "", health.count > health.findings.length ? el("p", { class: "hint" }, `${health.count - health.findings.length} more findings are not shown.`) : "");
}

// Findings that the same commands mend are shown together, with the commands once.
function groups(findings) {
  const found = new Map();
  for (const each of findings) {
    const name = each.commands.join("\n");
    found.set(name, [...(found.get(name) ?? []), each]);
  }
  return [...found.values()].map((each) => el("article", { class: "finding", "data-commands": each[0].commands.length, "data-severity": each[0].severity },
    el("ul", each.length > 1 ? { tabindex: 0, "aria-label": plural(each.length, "finding") } : {}, ...each.map((one) => el("li", {}, el("p", {}, chip(one.severity), " ", el("b", {}, one.code), " ", el("code", { class: "path" }, one.path)), el("p", {}, capital(one.message)), each.every((other) => other.remedy === each[0].remedy) ? null : el("p", { class: "remedy" }, ...prose(one.remedy))))),
    each.every((other) => other.remedy === each[0].remedy) ? el("p", { class: "remedy" }, ...prose(each[0].remedy)) : null,
    ...each[0].commands.map(command)));
}

// Spark numbers its sources; a number tells sources of the same kind apart.
const numbered = (source) => /^\d+$/.test(source.name);
function named(source) {
  if (source.kind === "other") return numbered(source) ? `source ${source.name}` : source.name;
  return source.name.startsWith(source.kind) ? source.name : `${source.kind} ${source.name}`;
}

// One row per source, and one per Kafka partition below it.
export function drawSources(sources) {
  const alone = (source) => sources.filter((each) => each.kind === source.kind).length === 1;
  const rows = sources.flatMap((source) => [
    [el("b", {}, source.kind !== "other" && numbered(source) && alone(source) ? source.kind : named(source)),
      source.at === null ? el("code", {}, JSON.stringify(source.end ?? null)) : whole(source.at), whole(source.latest), whole(source.lag),
      source.why ? el("span", { class: "why" }, source.why) : `${source.unit}${source.seconds ? `; the oldest waits for ${span(1000 * source.seconds)}` : ""}${source.partitions > 1 ? `; ${source.partitions} partitions` : ""}`],
    ...source.parts.map((part) => [el("span", { class: "part" }, `${part.topic}-${part.partition}`), whole(part.at), whole(part.latest), whole(part.lag), ""])]);
  $("sources-empty").hidden = rows.length > 0;
  if (rows.length) table($("sources"), [["source"], ["position", true], ["end", true], ["lag", true], [""]].map(([name, number], index) => [index === 4 ? "note" : name, number]), rows);
  else $("sources").replaceChildren();
}

export function historyTiles(query, history, lag, health) {
  const figures = history?.figures ?? {};
  const newest = history?.batches.at(-1);
  const sized = history?.batches.findLast((each) => each.state_rows !== null);
  const units = [...new Set(history?.sources.map((source) => source.unit) ?? [])];
  const sums = units.map((unit) => (newest?.read ?? []).filter((each, index) => each !== null && history.sources[index].unit === unit)).map((known) => (known.length ? known.reduce((sum, each) => sum + each, 0) : null));
  const read = sums.some((each) => each !== null);
  const begun = history?.batches.length > 0;
  const behind = lag?.sources.map((source) => source.lag).filter((each) => each !== null && each !== undefined) ?? [];
  const seconds = Math.max(0, ...(lag?.sources ?? []).map((source) => source.seconds ?? 0));
  return [
    [`newest ${query.unit}`, whole(isAhead(query, newest) ? query.epoch : figures.newest), began(query, newest)],
    [`${query.unit} duration`, millis(figures.took_ms), figures.took_p50_ms === null || figures.took_p50_ms === undefined ? "" : `p50 ${millis(figures.took_p50_ms)}, p99 ${millis(figures.took_p99_ms)}`],
    ["interval", millis(figures.interval_ms), `median between ${many(query.unit)}`],
    ["input", read ? sums.map(count).join(" + ") : "–", read ? `${units.join(" + ")} in the newest ${query.unit}` : ""],
    ["lag", behind.length ? count(behind.reduce((sum, each) => sum + each, 0)) : "–", behind.length ? (seconds ? `oldest ${span(1000 * seconds)}` : "nothing waits") : "unknown, see Sources"],
    ["state rows", begun && !history.stateful ? "none" : count(sized?.state_rows), sized ? bytes(sized.state_bytes) : begun && !history.stateful ? "stateless query" : ""],
    ["findings", health ? whole(query.findings) : "–", health ? `checked ${ago(health.checked_ms)}` : "not checked yet"],
    ["watermark", newest?.watermark_ms ? span(Date.now() - newest.watermark_ms) : begun ? "none" : "–", newest?.watermark_ms ? `behind now, at ${moment(newest.watermark_ms)}` : begun ? "no event time" : ""],
  ];
}

// The history has only batches whose offsets can be read.
const isAhead = (query, newest) => query.epoch !== null && query.epoch > (newest?.batch_id ?? -1);

function began(query, newest) {
  if (isAhead(query, newest)) return query.newest_ms === null ? "without readable offsets" : `began ${ago(query.newest_ms)}`;
  return newest ? (newest.committed ? `began ${ago(newest.started_ms)}` : "not committed") : "";
}

export function drawHistory(query, history) {
  const batches = history?.batches ?? [];
  const empty = history ? `Too few ${many(query.unit)} yet.` : "Reading the checkpoint.";
  const label = (index) => `${query.unit} ${whole(batches[index].batch_id)}`;
  const points = (name) => batches.map((batch) => [batch.started_ms, batch[name]]);
  lines($("duration").querySelector(".chart"), [{ name: "duration", kind: "l1", points: points("took_ms") }], { unit: "time", label, empty: history?.note ?? empty });
  const sources = history?.sources ?? [];
  const units = [...new Set(sources.map((source) => source.unit))];
  const boxes = $("input-charts");
  while (boxes.children.length > Math.max(1, units.length)) boxes.lastChild.remove();
  while (boxes.children.length < Math.max(1, units.length)) boxes.append(el("div", { class: "chart" }));
  (units.length ? units : [""]).forEach((unit, at) => {
    const mine = sources.map((source, index) => [source, index]).filter(([source]) => source.unit === unit);
    lines(boxes.children[at], mine.map(([source, index], number) => ({ name: mine.length > 1 ? named(source) : unit, kind: `l${[1, 2, 5, 3, 4, 6][number % 6]}`, points: batches.map((batch) => [batch.started_ms, batch.read[index]]) })), { label, empty, legend: units.length > 1 });
  });
  $("input-hint").textContent = `What each ${query.unit} read, from its offsets: ${units.join(", ") || "nothing yet"}.`;
  drawGrowth(batches.filter((batch) => batch.state_rows !== null).map((batch) => ({ at_ms: batch.started_ms, name: `${query.unit} ${whole(batch.batch_id)}`, rows: batch.state_rows, bytes: batch.state_bytes })), history ? history.stateful : true, [], history?.state_note);
  drawWatermark(batches.map((batch) => [batch.started_ms, batch.behind_ms]), label);
}

export function drawGrowth(points, stateful, marks = [], note = null) {
  $("growth").hidden = !stateful;
  if (!stateful) return;
  const label = points.length && points[0].name ? (index) => points[index].name : null;
  lines($("growth-rows"), [{ name: "rows", kind: "l2", points: points.map((each) => [each.at_ms, each.rows]) }], { label, marks, empty: note ?? (points.length ? `One measurement so far: ${plural(points[0].rows, "row")}.` : "Not measured yet.") });
  const sized = points.some((each) => each.bytes !== undefined);
  $("growth-bytes").hidden = !sized;
  $("growth-hint").textContent = sized ? "Rows in all stores, and their size before compression." : "Rows in all stores.";
  if (sized) lines($("growth-bytes"), [{ name: "size", kind: "l5", points: points.map((each) => [each.at_ms, each.bytes]) }], { unit: "bytes", label, empty: "" });
}

export function drawWatermark(points, label, marks = []) {
  const known = points.some(([, value]) => value !== null && value !== undefined);
  $("watermark").hidden = !known;
  if (known) lines($("watermark").querySelector(".chart"), [{ name: "behind the clock", kind: "l3", points }], { unit: "span", label, marks });
}
