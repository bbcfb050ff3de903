// Shows offsets and state of any version, and state by partition. It loads one page at a time.

import { $, bytes, chip, count, el, many, moment, plural, prose, whole } from "./format.js";
import { table } from "./charts.js";

const PAGE = 20;
let key = null, unit = "batch", older = null, page = 0, stateStores = [], timer = null;

// Thrown where an answer is about a query that is no longer shown: it must change nothing.
class Outdated extends Error {}

// Asks about the shown query. A checkpoint that cannot be read answers with a problem.
export async function ask(path, parameters = {}, of = key) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null));
  const response = await fetch(`/api/queries/${encodeURIComponent(of)}/${path}?${query}`);
  const answer = await response.json();
  if (of !== key) throw new Outdated();
  if (!response.ok || answer.problem !== undefined) throw new Error(answer.problem ?? answer.error ?? response.statusText);
  return answer;
}

// Shows why something could not be asked, in place of the answer.
function explain(error, note, content) {
  if (error instanceof Outdated) return;
  $(note).replaceChildren(...prose(error.message));
  $(content).replaceChildren();
}

function plain(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return typeof value === "string" ? value : JSON.stringify(value);
  return Object.entries(value).map(([name, item]) => `${name}=${typeof item === "string" ? item : JSON.stringify(item)}`).join(", ");
}

const cell = (value) => (value !== null && typeof value === "object" ? el("span", { class: "mono" }, plain(value)) : plain(value));

const when = (ms) => el("span", { class: "when" }, moment(ms));

// What is not a number is as good as nothing: then the newest is shown.
const number = (id) => { const text = $(id).value.trim(); const good = text === "" || /^\d{1,18}$/.test(text); $(id).setAttribute("aria-invalid", String(!good)); return good ? text : ""; };

async function showOffsets(before) {
  try {
    const found = await ask("offsets", { before: before ?? "", limit: PAGE });
    older = found.older;
    $("offsets-older").disabled = older === null;
    $("offsets-range").textContent = found.count ? `${plural(found.count, unit)} kept, ${whole(found.oldest)} to ${whole(found.newest)}` : `no ${unit} yet`;
    table($("offsets-table"), [[unit, true], ["state"], ["began"], ["watermark"], ["offsets"]], found.batches.map((batch) => [
      whole(batch.batch_id), batch.committed ? "✓ committed" : "not committed", when(batch.timestamp_ms), when(batch.watermark_ms),
      batch.problem ? chip("error", batch.problem, el("span", { class: "chip wrap" })) : el("pre", {}, JSON.stringify(batch.offsets)),
    ]));
  } catch (error) { explain(error, "offsets-range", "offsets-table"); }
}

function place(select) {
  const chosen = stateStores[Number(select.value)];
  return chosen ? { operator: chosen.operator_id, store: chosen.name } : null;
}

function fill(select, stores) {
  const before = select.selectedOptions[0]?.textContent;
  const names = stores.map((store) => `${store.operator_id} ${store.operator_name ?? ""} / ${store.name}`);
  if ([...select.options].map((option) => option.textContent).join() === names.join()) return;
  select.replaceChildren(...names.map((name, index) => el("option", { value: index, selected: name === before }, name)));
}

async function showState() {
  try {
    const batch = number("state-batch");
    const listed = await ask("stores", { batch });
    stateStores = listed.stores;
    fill($("state-store"), stateStores);
    fill($("store"), stateStores);
    for (const id of ["state-store", "state-partition", "store"]) $(id).disabled = !stateStores.length;
    const at = place($("state-store"));
    if (!at) { $("state-range").textContent = "This query has no state."; $("state-table").replaceChildren(); return; }
    const found = await ask("state", { ...at, batch, partition: $("state-partition").value, page });
    const parts = ["", ...found.partitions.map(String)];
    if ($("state-partition").options.length !== parts.length) {
      $("state-partition").replaceChildren(...parts.map((part) => el("option", { value: part }, part === "" ? "all" : part)));
    }
    $("state-before").disabled = page === 0;
    $("state-next").disabled = !found.more;
    const first = page * 50;
    const versions = `${many(unit)} ${whole(listed.oldest)} to ${whole(listed.newest)} are kept`;
    $("state-range").textContent = found.rows.length
      ? `rows ${whole(first + 1)} to ${whole(first + found.rows.length)} after ${unit} ${found.batch_id}; ${versions}`
      : `no rows after ${unit} ${found.batch_id}`;
    table($("state-table"), found.columns.map((name) => [name, name === "partition_id"]), found.rows.map((row) => found.columns.map((name) => cell(row[name]))));
  } catch (error) { explain(error, "state-range", "state-table"); }
}

async function showPartitions() {
  const at = place($("store"));
  $("stores").hidden = !at;
  if (!at) { $("partitions").replaceChildren(); return; }
  try {
    const found = await ask("stats", at);
    const most = Math.max(1, ...found.partitions.map((part) => part.rows));
    $("skew").replaceChildren(el("b", {}, whole(found.rows)), " rows, ", el("b", {}, bytes(found.bytes)), ", skew ", el("b", {}, found.skew.toFixed(2)), ` after ${unit} ${found.batch_id}`);
    const mean = found.rows / Math.max(1, found.partitions.length);
    const bars = found.partitions.slice(0, 200).flatMap((part) => {
      const fillBar = el("i", { "data-kind": part.rows > 2 * mean && found.partitions.length > 1 ? "warn" : null });
      fillBar.style.width = `${(100 * part.rows) / most}%`;
      const average = el("u");
      average.style.left = `${(100 * mean) / most}%`;
      const large = part.largest[0];
      return [el("span", {}, String(part.partition_id)), el("span", { class: "bar", role: "img", "aria-label": `partition ${part.partition_id}: ${part.rows} rows` }, fillBar, average),
        el("span", {}, `${count(part.rows)} rows, ${bytes(part.key_bytes + part.value_bytes)}`),
        el("span", { class: "key", title: large ? plain(large.key) : null }, large ? `largest ${plain(large.key)} (${bytes(large.bytes)})` : "")];
    });
    $("partitions").replaceChildren(el("div", { class: "bars" }, ...bars));
  } catch (error) { explain(error, "skew", "partitions"); }
}

async function refresh() {
  clearTimeout(timer);
  const mine = key;
  if (mine === null) return;
  try {
    if (!$("offsets-table").dataset.paged) await showOffsets(null);
    if (!stateStores.length || ($("state-batch").value.trim() === "" && page === 0)) await showState();
    await showPartitions();
  } finally {
    if (mine === key) timer = setTimeout(refresh, document.hidden ? 10000 : 2000);
  }
}

export function browse(chosen, name) {
  unit = name;
  for (const each of document.querySelectorAll(".unit")) each.textContent = name;
  if (chosen === key) return;
  key = chosen; page = 0; older = null; stateStores = [];
  delete $("offsets-table").dataset.paged;
  for (const id of ["offsets-batch", "state-batch"]) { $(id).value = ""; $(id).removeAttribute("aria-invalid"); }
  for (const id of ["state-partition", "state-store", "store", "partitions", "state-table", "offsets-table"]) $(id).replaceChildren();
  $("skew").textContent = ""; $("stores").hidden = true;
  refresh();
}

function choose(tab, focus) {
  for (const name of ["offsets", "state"]) {
    const mine = name === tab;
    $(`tab-${name}`).setAttribute("aria-selected", String(mine));
    $(`tab-${name}`).tabIndex = mine ? 0 : -1;
    $(`pane-${name}`).hidden = !mine;
    if (mine && focus) $(`tab-${name}`).focus();
  }
}

for (const name of ["offsets", "state"]) {
  $(`tab-${name}`).addEventListener("click", () => choose(name));
  $(`tab-${name}`).addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") choose(name === "state" ? "offsets" : "state", true);
  });
}
$("offsets-older").addEventListener("click", () => { $("offsets-table").dataset.paged = "yes"; showOffsets(older); });
$("offsets-newest").addEventListener("click", () => { delete $("offsets-table").dataset.paged; $("offsets-batch").value = ""; showOffsets(null); });
$("offsets-batch").addEventListener("change", () => {
  const at = number("offsets-batch");
  $("offsets-table").dataset.paged = "yes";
  showOffsets(at === "" ? null : Number(at) + 1);
});
$("state-next").addEventListener("click", () => { page += 1; showState(); });
$("state-before").addEventListener("click", () => { page = Math.max(0, page - 1); showState(); });
for (const id of ["state-batch", "state-store", "state-partition"]) $(id).addEventListener("change", () => { page = 0; showState(); });
$("store").addEventListener("change", showPartitions);
