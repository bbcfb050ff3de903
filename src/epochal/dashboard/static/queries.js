// The list of queries: search, groups, one row each. Rows are kept and updated in place, so that
// focus and pointer stay where they are while figures change.

import { $, ago, count, el, kind, millis, plural, sign, status, whole } from "./format.js";

const GROUPS = { attention: "Needs attention", running: "Running", idle: "Not active", unchecked: "Not checked yet" };
const rows = new Map();
let queries = [], chosen = null, pick = () => {}, shown = [];

function what(query) {
  const newest = query.epoch === null ? `no ${query.unit} yet` : `${query.unit} ${whole(query.epoch)}`;
  if (query.state === "running") return `${count(query.input_rate)} rows/s · p99 ${millis(query.p99_ms)} · ${newest}`;
  const end = query.ended_ms ?? query.newest_ms;
  return `${newest}${end ? ` · ${ago(end)}` : ""}`;
}

function word(query) {
  if (query.status === "unhealthy") return plural(query.findings, "finding");
  return query.status === "healthy" && query.state === "stopped" ? "stopped" : status(query.status);
}

function row(query) {
  let item = rows.get(query.key);
  if (!item) {
    const parts = { who: el("span", { class: "who" }), word: el("span", { class: "word" }), what: el("span", { class: "what" }) };
    const button = el("button", { type: "button", "data-key": query.key, onclick: () => pick(query.key) }, parts.who, parts.word, parts.what);
    item = { node: el("li", {}, button), button, parts };
    rows.set(query.key, item);
  }
  const texts = { who: query.name, word: word(query), what: what(query) };
  for (const [name, text] of Object.entries(texts)) if (item.parts[name].textContent !== text) item.parts[name].textContent = text;
  item.button.title = query.checkpoint;
  item.button.dataset.kind = kind(query.status);
  item.button.dataset.sign = query.state === "stopped" && query.status === "healthy" ? sign("stopped") : sign(query.status);
  if (query.key === chosen) item.button.setAttribute("aria-current", "true"); else item.button.removeAttribute("aria-current");
  return item.node;
}

const matches = (query, words) => {
  const text = [query.name, query.checkpoint, query.query_id, query.status, query.state, query.sink, ...(query.sources ?? [])].join(" ").toLowerCase();
  return words.every((each) => text.includes(each));
};

function grouped(found) {
  const by = $("grouping").value;
  if (by === "none") return [["", found]];
  const groups = new Map(by === "status" ? Object.keys(GROUPS).map((name) => [name, []]) : []);
  for (const query of found) {
    const name = by === "status" ? query.group : query.place;
    groups.set(name, [...(groups.get(name) ?? []), query]);
  }
  // Within directories, too, what needs attention comes first.
  const weight = (query) => Object.keys(GROUPS).indexOf(query.group);
  if (by !== "status") for (const list of groups.values()) list.sort((one, two) => weight(one) - weight(two));
  return [...groups].filter(([, list]) => list.length).map(([name, list]) => [GROUPS[name] ?? name, list]);
}

export function list(news = queries, selected = chosen) {
  queries = news; chosen = selected;
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = queries.filter((query) => matches(query, words));
  const groups = grouped(found);
  shown = groups.flatMap(([, each]) => each);
  const sick = queries.filter((query) => query.group === "attention").length;
  const text = words.length ? `${found.length} of ${queries.length} match` : `${plural(queries.length, "query", "queries")}${sick ? `, ${sick} ${sick === 1 ? "needs" : "need"} attention` : ""}`;
  if ($("tally").textContent !== text) $("tally").textContent = text;
  $("find").hidden = queries.length < 2;
  const order = groups.map(([name, each]) => `${name}:${each.map((query) => query.key)}`).join("|");
  for (const query of found) row(query);
  groups.forEach(([, each], index) => { const badge = $("queries").children[index]?.querySelector(".number"); if (badge && order === $("queries").dataset.order) badge.textContent = each.length; });
  if ($("queries").dataset.order === order) return;
  $("queries").dataset.order = order;
  const focused = document.activeElement?.dataset?.key;
  $("queries").replaceChildren(...groups.map(([name, each]) => el("section", {},
    name ? el("h3", { title: name }, el("span", { class: "place" }, name), el("span", { class: "number" }, each.length)) : null,
    el("ul", {}, ...each.map(row)))));
  if (focused) document.querySelector(`#queries [data-key="${focused}"]`)?.focus({ preventScroll: true });
}

export function neighbour(by) {
  const at = shown.findIndex((query) => query.key === chosen);
  return shown[Math.max(0, Math.min(shown.length - 1, at + by))]?.key ?? null;
}

export const firstShown = () => shown[0]?.key ?? null;

export function listWith(choose) {
  pick = choose;
  $("grouping").value = localStorage.getItem("grouping") ?? "status";
  if (!$("grouping").value) $("grouping").value = "status";
  $("search").addEventListener("input", () => list());
  $("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && shown.length) { pick(shown[0].key); document.querySelector(`#queries [data-key="${shown[0].key}"]`)?.focus(); }
    if (event.key === "Escape") { $("search").value = ""; list(); }
  });
  $("grouping").addEventListener("change", () => { localStorage.setItem("grouping", $("grouping").value); list(); });
}
