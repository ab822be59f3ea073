// Shared by all pages: questions to the admin API, live data, words for numbers, tables of many rows.
import { h, html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./htm-preact.js";
export { h, html, render, useEffect, useLayoutEffect, useMemo, useRef, useState };

// questions ---------------------------------------------------------------------------------------

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

export async function ask(path, { method = "GET", body } = {}) {
  const init = { method, headers: { accept: "application/json" }, credentials: "same-origin" };
  if (body !== undefined) { init.body = JSON.stringify(body); init.headers["content-type"] = "application/json"; }
  const answer = await fetch(path, init);
  const said = await answer.json().catch(() => null);
  if (answer.status === 401) window.dispatchEvent(new Event("kvgate:session-ended"));
  if (!answer.ok) throw new Refused(answer.status, said?.error?.message ?? `the gateway answers ${answer.status}`);
  return said;
}

// A page's answer, asked again every `seconds`; the last good one stays while the gateway is away.
export function useAnswer(path, seconds = 5) {
  const [state, setState] = useState({ data: null, error: null });
  useEffect(() => {
    let timer, ended = false;
    const look = async () => {
      try { const data = await ask(path); if (!ended) setState({ data, error: null }); }
      catch (error) { if (!ended) setState(({ data }) => ({ data, error })); }
      if (!ended && seconds) timer = setTimeout(look, seconds * 1000);
    };
    look();
    return () => { ended = true; clearTimeout(timer); };
  }, [path, seconds]);
  return state;
}

// live data: one stream at a time, for the topics of the page --------------------------------------

const SILENT_MS = 6000, AGAIN_MS = 1500;
export const link = { isLive: false, lostAt: null, listeners: new Set() };

function note(isLive, lostAt = null) {
  if (isLive === link.isLive && (isLive || link.lostAt !== null)) return;
  link.isLive = isLive;
  link.lostAt = lostAt;
  for (const listener of link.listeners) listener();
}

export function useLink() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((n) => n + 1);
    link.listeners.add(listener);
    const timer = setInterval(() => { if (!link.isLive) listener(); }, 1000);
    return () => { link.listeners.delete(listener); clearInterval(timer); };
  }, []);
  return link;
}

export function useLive(topics, onData) {
  const handler = useRef(onData);
  handler.current = onData;
  useEffect(() => {
    let source, timer, opened, heard = Date.now(), ended = false;
    const open = () => {
      opened = Date.now();
      source = new EventSource(`admin/events?topics=${topics || "none"}`);
      source.addEventListener("tick", () => { heard = Date.now(); note(true); });
      for (const topic of topics.split(","))
        source.addEventListener(topic, (event) => {
          heard = Date.now();
          note(true);
          handler.current(topic, JSON.parse(event.data));
        });
      source.onerror = () => { if (source.readyState === EventSource.CLOSED) later(); };
    };
    const later = () => {
      opened = Date.now();
      source.close();
      clearTimeout(timer);
      timer = setTimeout(() => { if (!ended) { window.dispatchEvent(new Event("kvgate:look")); open(); } }, AGAIN_MS);
    };
    const watch = setInterval(() => {
      if (Date.now() - heard > SILENT_MS) note(false, heard);
      if (Date.now() - Math.max(heard, opened) > 4 * SILENT_MS) later(); // a connection that is open and mute
    }, 500);
    open();
    return () => { ended = true; clearInterval(watch); clearTimeout(timer); source.close(); };
  }, [topics]);
}

// words for numbers --------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en-US"), NONE = "–";
export const count = (n) => (n === null || n === undefined ? NONE : whole.format(Math.round(n)));
export function short(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return NONE;
  if (Math.abs(n) >= 999_500) return `${(n / 1e6).toFixed(n >= 1e7 ? 0 : 1)} M`;
  if (Math.abs(n) >= 10_000) return `${(n / 1e3).toFixed(0)} k`;
  return Math.abs(n) < 10 && n % 1 ? n.toFixed(1) : whole.format(Math.round(n));
}
export const percent = (x, digits = 0) => (x === null || x === undefined || Number.isNaN(x) ? NONE : `${(100 * x).toFixed(digits)} %`);
export const ratio = (part, all) => (all ? part / all : null);
export function seconds(s) {
  if (s === null || s === undefined || Number.isNaN(s)) return NONE;
  if (s < 0.001) return `${(1e6 * s).toFixed(0)} µs`;
  if (s < 0.9995) return `${(1e3 * s).toFixed(s < 0.01 ? 1 : 0)} ms`;
  return s < 120 ? `${s.toFixed(s < 10 ? 2 : 0)} s` : `${(s / 60).toFixed(0)} min`;
}
export function ago(unix, now = Date.now() / 1000) {
  if (!unix) return "";
  const s = Math.max(0, now - unix);
  return s < 60 ? `${s.toFixed(0)} s` : s < 7200 ? `${(s / 60).toFixed(0)} min` : s < 172800 ? `${(s / 3600).toFixed(0)} h` : `${(s / 86400).toFixed(0)} d`;
}
export const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en-GB");

// Percentile of counts by range ("0.05-0.1": 7), linear within one, as Prometheus has it.
export function quantile(counts, q) {
  const ranges = Object.entries(counts).map(([range, n]) => [...range.split("-").map((x) => (x === "inf" ? Infinity : Number(x))), n]).sort((a, b) => a[0] - b[0]);
  const total = ranges.reduce((sum, [, , n]) => sum + n, 0);
  let seen = 0;
  for (const [low, high, n] of ranges) {
    if (seen + n >= q * total) return high === Infinity ? low : low + ((high - low) * (q * total - seen)) / n;
    seen += n;
  }
  return null;
}

// parts of pages -----------------------------------------------------------------------------------

export const Chip = ({ kind, children }) => html`<span class=${`chip ${kind ?? ""}`}>${children}</span>`;
export const Bar = ({ share, label, wide, warns }) => html`<span class=${`bar ${wide ? "wide" : ""} ${warns && share > 0.9 ? "hot" : ""}`} role="img" aria-label=${label ?? percent(share)}><i style=${{ width: `${Math.min(100, 100 * (share || 0))}%` }}></i></span>`;
export const Tile = ({ name, children, sub }) => html`<dl class="tile"><dt>${name}</dt><dd>${children}${sub ? html`<div class="sub">${sub}</div>` : null}</dd></dl>`;
export const Panel = ({ title, about, tools, children }) => html`<section class="panel" aria-label=${title}><header><h2>${title}</h2>${about ? html`<p>${about}</p>` : null}${tools}</header>${children}</section>`;
export const Head = ({ title, about, children }) => html`<div class="head"><div><h1>${title}</h1>${about ? html`<p>${about}</p>` : null}</div><div class="tools">${children}</div></div>`;
export const Trouble = ({ error }) => (error ? html`<p class="banner bad" role="alert">${error.message}</p>` : null);

export function Dialog({ title, onClose, children }) {
  const element = useRef(null);
  useEffect(() => { element.current.showModal(); }, []);
  return html`<dialog ref=${element} onClose=${onClose} aria-label=${title} onClick=${(event) => { if (event.target === element.current) element.current.close(); }}>
    <div><header><h2>${title}</h2><button class="btn small" onClick=${() => element.current.close()}>Close</button></header>${children}</div></dialog>`;
}

// A table of any number of rows, of which only those in sight are elements. A column: {id, name, num, cell, by}.
export function Table({ caption, columns, rows, keyOf, onOpen, height = 54, initial, empty = "Nothing yet.", chosen, tall }) {
  const [sort, setSort] = useState(initial ?? null);
  const [view, setView] = useState({ top: 0, size: 900 });
  const frame = useRef(null);
  const sorted = useMemo(() => {
    const column = sort && columns.find((each) => each.id === sort.id);
    if (!column?.by) return rows;
    const sign = sort.down ? -1 : 1;
    return [...rows].sort((a, b) => {
      const [x, y] = [column.by(a), column.by(b)];
      if (x === y) return 0;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return x < y ? -sign : sign;
    });
  }, [rows, sort, columns]);
  useLayoutEffect(() => {
    const element = frame.current;
    if (!element) return undefined;
    const look = () => setView((before) => {
      const now = { top: element.scrollTop, size: element.clientHeight };
      return Math.abs(before.top - now.top) < height && before.size === now.size ? before : now;
    });
    look();
    element.addEventListener("scroll", look, { passive: true });
    window.addEventListener("resize", look);
    return () => { element.removeEventListener("scroll", look); window.removeEventListener("resize", look); };
  }, [rows.length === 0]);
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  const first = Math.max(0, Math.floor(view.top / height) - 8);
  const last = Math.min(sorted.length, Math.ceil((view.top + Math.max(view.size, 300)) / height) + 8);
  const move = (event) => {
    const step = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
    if (step) { event.currentTarget[step]?.focus?.(); event.preventDefault(); }
    if (event.key === "Enter" && event.target === event.currentTarget) event.currentTarget.click();
  };
  const gap = (rows) => (rows > 0 ? html`<tr aria-hidden="true" style=${{ height: `${rows * height}px` }}><td colspan=${columns.length} style=${{ padding: 0, border: 0 }}></td></tr>` : null);
  return html`<div class=${`scroll ${tall ? "tall" : ""}`} ref=${frame} tabindex="0" role="region" aria-label=${caption}><table aria-rowcount=${sorted.length + 1}>
    <caption class="visually-hidden">${caption}</caption>
    <thead><tr>${columns.map((column) => html`<th key=${column.id} scope="col" class=${column.num ? "num" : ""} title=${column.about} aria-sort=${sort?.id === column.id ? (sort.down ? "descending" : "ascending") : undefined}>${
      column.by ? html`<button onClick=${() => setSort({ id: column.id, down: sort?.id === column.id ? !sort.down : Boolean(column.num) })}>${column.name}<span aria-hidden="true">${sort?.id === column.id ? (sort.down ? "↓" : "↑") : ""}</span></button>` : column.name}</th>`)}</tr></thead>
    <tbody>${gap(first)}${sorted.slice(first, last).map((row, i) => html`<tr key=${keyOf(row)} aria-rowindex=${first + i + 2} class=${`row ${height < 50 ? "slim" : ""} ${chosen?.(row) ? "chosen" : ""}`} tabindex=${onOpen ? 0 : undefined} onKeyDown=${onOpen ? move : undefined} onClick=${onOpen ? () => onOpen(row) : undefined}>${
      columns.map((column) => html`<td key=${column.id} class=${column.num ? "num" : column.wrap ? "wrap" : ""}>${column.cell(row)}</td>`)}</tr>`)}${gap(sorted.length - last)}</tbody>
  </table></div>`;
}
