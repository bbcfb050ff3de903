// Shows offsets and state of any version, and state by partition. It loads one page at a time.

import { count, el, moment, table } from "./charts.js";

const $ = (id) => document.getElementById(id);
const PAGE = 20;
let key = null, older = null, page = 0, stateStores = [], timer = null;

async function ask(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null));
  const response = await fetch(`/api/queries/${encodeURIComponent(key)}/${path}?${query}`);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || response.statusText);
  return answer;
}

function plain(value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return typeof value === "string" ? value : JSON.stringify(value);
  return Object.entries(value).map(([name, item]) => `${name}=${typeof item === "string" ? item : JSON.stringify(item)}`).join(", ");
}

const cell = (value) => (value !== null && typeof value === "object" ? el("span", { class: "mono" }, plain(value)) : plain(value));

async function showOffsets(before) {
  try {
    const found = await ask("offsets", { before: before ?? "", limit: PAGE });
    older = found.older;
    $("offsets-older").disabled = older === null;
    $("offsets-range").textContent = found.count ? `${found.count} batches, ${found.oldest} to ${found.newest}` : "no batches";
    table($("offsets-table"), [["batch", true], ["state"], ["started"], ["watermark"], ["offsets"]], found.batches.map((batch) => [
      batch.batch_id, batch.committed ? "✓ committed" : "open", moment(batch.timestamp_ms),
      batch.watermark_ms ? new Date(batch.watermark_ms).toISOString() : "–",
      batch.problem ? el("span", { class: "chip", "data-kind": "bad" }, batch.problem) : el("pre", {}, JSON.stringify(batch.offsets)),
    ]));
  } catch (error) { $("offsets-range").textContent = error.message; table($("offsets-table"), [["batch"]], []); }
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
    const batch = $("state-batch").value.trim();
    const listed = await ask("stores", { batch });
    stateStores = listed.stores;
    fill($("state-store"), stateStores);
    fill($("store"), stateStores);
    const at = place($("state-store"));
    if (!at) { $("state-range").textContent = "This query has no state."; table($("state-table"), [["key"]], []); return; }
    const found = await ask("state", { ...at, batch, partition: $("state-partition").value, page });
    const parts = ["", ...found.partitions.map(String)];
    if ($("state-partition").options.length !== parts.length) {
      $("state-partition").replaceChildren(...parts.map((part) => el("option", { value: part }, part === "" ? "all" : part)));
    }
    $("state-before").disabled = page === 0;
    $("state-next").disabled = !found.more;
    const first = page * 50;
    $("state-range").textContent = found.rows.length
      ? `rows ${first + 1} to ${first + found.rows.length} after batch ${found.batch_id} (versions ${listed.oldest} to ${listed.newest})`
      : `no rows after batch ${found.batch_id}`;
    table($("state-table"), found.columns.map((name) => [name, name === "partition_id"]), found.rows.map((row) => found.columns.map((name) => cell(row[name]))));
  } catch (error) { $("state-range").textContent = error.message; table($("state-table"), [["key"]], []); }
}

async function showPartitions() {
  const at = place($("store"));
  if (!at) { $("skew").textContent = "This query has no committed state."; $("partitions").replaceChildren(); return; }
  try {
    const found = await ask("stats", at);
    const most = Math.max(1, ...found.partitions.map((part) => part.rows));
    $("skew").replaceChildren(el("b", {}, count(found.rows)), " rows, ", el("b", {}, bytes(found.bytes)), ", skew ", el("b", {}, String(found.skew)), ` after batch ${found.batch_id}`);
    const bars = found.partitions.slice(0, 200).flatMap((part) => {
      const fillBar = el("i");
      fillBar.style.width = `${(100 * part.rows) / most}%`;
      const large = part.largest[0];
      return [el("span", {}, `partition ${part.partition_id}`), el("span", { class: "bar", role: "img", "aria-label": `${part.rows} rows` }, fillBar),
        el("span", {}, `${count(part.rows)} rows, ${bytes(part.key_bytes + part.value_bytes)}`),
        el("span", { class: "key" }, large ? `largest: ${plain(large.key)} (${bytes(large.bytes)})` : "")];
    });
    $("partitions").replaceChildren(el("div", { class: "bars" }, ...bars));
  } catch (error) { $("skew").textContent = error.message; }
}

function bytes(size) {
  for (const unit of ["B", "KiB", "MiB"]) { if (size < 1024) return `${unit === "B" ? size : size.toFixed(1)} ${unit}`; size /= 1024; }
  return `${size.toFixed(1)} GiB`;
}

async function refresh() {
  clearTimeout(timer);
  const mine = key;
  if (mine === null) return;
  if (!$("offsets-table").dataset.paged) await showOffsets(null);
  if (!stateStores.length || ($("state-batch").value.trim() === "" && page === 0)) await showState();
  await showPartitions();
  if (mine === key) timer = setTimeout(refresh, document.hidden ? 10000 : 2000);
}

export function browse(chosen) {
  if (chosen === key) return;
  key = chosen; page = 0; older = null; stateStores = [];
  delete $("offsets-table").dataset.paged;
  for (const id of ["offsets-batch", "state-batch"]) $(id).value = "";
  $("state-partition").replaceChildren();
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
$("offsets-batch").addEventListener("change", (event) => {
  const at = event.target.value.trim();
  $("offsets-table").dataset.paged = "yes";
  showOffsets(/^\d+$/.test(at) ? Number(at) + 1 : null);
});
$("state-next").addEventListener("click", () => { page += 1; showState(); });
$("state-before").addEventListener("click", () => { page = Math.max(0, page - 1); showState(); });
for (const id of ["state-batch", "state-store", "state-partition"]) $(id).addEventListener("change", () => { page = 0; showState(); });
$("store").addEventListener("change", showPartitions);
