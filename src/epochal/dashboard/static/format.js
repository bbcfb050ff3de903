// Makes elements, and words for numbers, times and sizes. Text is inserted as text, never as markup,
// so that data from a checkpoint cannot inject code.

export const $ = (id) => document.getElementById(id);

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Whether the user has selected text here, to copy it. It must not be replaced meanwhile.
export function isSelected(box) {
  const selection = getSelection();
  return !selection.isCollapsed && box.contains(selection.anchorNode);
}

const unknown = (value) => value === null || value === undefined || Number.isNaN(value);

// 12345 is "12.3k": short, for tiles and axes.
export function count(value) {
  if (unknown(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${(value / 1e9).toFixed(1)}G`;
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)}M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)}k`;
  return size >= 100 || Number.isInteger(value) ? whole(Math.round(value)) : value.toFixed(1);
}

// 12345 is "12,345": exact, for offsets and ids.
export const whole = (value) => (unknown(value) ? "–" : value.toLocaleString("en-US"));

export const many = (name) => ({ batch: "batches", query: "queries" })[name] ?? `${name}s`;
export const plural = (number, one, more = many(one)) => `${whole(number)} ${number === 1 ? one : more}`;

export function millis(value) {
  if (unknown(value)) return "–";
  return Math.abs(value) < 1000 ? `${Math.round(value * 10) / 10} ms` : span(value);
}

// A length of time in its largest fitting unit.
export function span(ms) {
  if (unknown(ms)) return "–";
  const size = Math.abs(ms);
  const [unit, name] = [[864e5, "d", 1296e5], [36e5, "h", 54e5], [6e4, "min", 9e4], [1e3, "s", 1e3]].find(([, , least]) => size >= least) ?? [1, "ms"];
  const value = ms / unit;
  const digits = Math.abs(value) >= 100 ? 0 : name === "s" && Math.abs(value) < 10 ? 2 : 1;
  return `${Number(value.toFixed(digits)).toLocaleString("en-US")} ${name}`;
}

export function bytes(size) {
  if (unknown(size)) return "–";
  for (const unit of ["B", "KiB", "MiB"]) {
    if (size < 1024) return `${unit === "B" ? size : size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} GiB`;
}

const two = (number) => String(number).padStart(2, "0");

export function clock(ms) {
  if (!ms) return "–";
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function day(ms) {
  const at = new Date(ms);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

// Local time in the form of ISO 8601; without the date if it is near.
export function moment(ms) {
  if (!ms) return "–";
  return Math.abs(Date.now() - ms) < 43200000 ? clock(ms) : `${day(ms)} ${clock(ms)}`;
}

// The browser's time zone, such as "Asia/Kolkata (UTC+05:30)".
export function zone() {
  const minutes = -new Date().getTimezoneOffset(), size = Math.abs(minutes);
  const offset = `UTC${minutes < 0 ? "-" : "+"}${two(Math.floor(size / 60))}:${two(size % 60)}`;
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return !minutes || !name ? (minutes ? offset : "UTC") : `${name} (${offset})`;
}

export function ago(ms) {
  if (!ms) return "–";
  const past = Date.now() - ms;
  return past < 1500 ? "just now" : `${span(past)} ago`;
}

export function capital(text) { return text.charAt(0).toUpperCase() + text.slice(1); }

// Words that are not broken at a hyphen, as browsers do with options such as --execute.
const byWord = (text) => text.split(/(\s+)/).map((part) => (/\S/.test(part) ? el("span", { class: "whole" }, part) : part));

// Text with `commands` in backticks as code.
export function prose(text) {
  return text.split("`").map((part, index) => (index % 2 ? el("code", {}, ...byWord(part)) : part));
}

const KINDS = { running: "good", active: "good", healthy: "good", failed: "bad", lost: "bad", unhealthy: "bad", unreadable: "warn", error: "bad", warning: "warn" };
const SIGNS = { running: "▶", active: "▶", failed: "✕", lost: "✕", stopped: "■", healthy: "✓", unhealthy: "✕", unreadable: "!", error: "✕", warning: "!", info: "i", unknown: "…" };
export const sign = (value) => SIGNS[value] ?? "◇";
// A status in words.
export const status = (value) => ({ missing: "no checkpoint", unknown: "not checked yet" })[value] ?? value;
export const kind = (value) => KINDS[value] ?? "plain";

export function chip(value, text = value, node = el("span", { class: "chip" })) {
  node.replaceChildren(`${sign(value)} `, ...prose(text));
  node.dataset.kind = kind(value);
  node.dataset.value = value;
  return node;
}

// A command with a button that copies it.
export function command(text) {
  const code = el("code", {}, ...byWord(text));
  const button = el("button", { type: "button", class: "copy", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(text); } catch {
      // Without TLS, browsers give pages of other hosts no clipboard: select the text instead.
      getSelection().selectAllChildren(code);
      if (!document.execCommand("copy")) { button.textContent = "Press Ctrl-C"; return; }
    }
    button.textContent = "Copied";
    button.dataset.copied = text;
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return el("div", { class: "command" }, code, button);
}
