// Fleet: a row for each worker, and what may be done with it.
import { Bar, Chip, Dialog, Head, Panel, Table, Tile, Trouble, ago, ask, clock, count, html, percent, quantile, ratio, seconds, short, useLive, useMemo, useState } from "./lib.js";

const STATES = { active: "good", slow_start: "warn", draining: "warn", joining: "warn", ejected: "bad", down: "bad" };
const STREAMS = { exact: ["good", "EXACT"], catching_up: ["warn", "CATCHING UP"], unproven: ["warn", "UNPROVEN"], blind: ["bad", "BLIND"], disconnected: ["bad", "disconnected"] };

// One object for each worker, and for each endpoint that has none yet.
export function rowsOf(fleet) {
  return fleet.endpoints.flatMap((endpoint) => endpoint.workers.length
    ? endpoint.workers.map((worker) => {
        const { traffic } = worker;
        return {
          ...worker, endpoint, key: worker.id, engine: endpoint.engine, reason: worker.reason ?? endpoint.last_error,
          p50: quantile(traffic.ttft, 0.5), p90: quantile(traffic.ttft, 0.9),
          predicted: ratio(traffic.predicted_cached_tokens, traffic.prompt_tokens), reported: ratio(traffic.reported_cached_tokens, traffic.reported_prompt_tokens),
          num_ejections: Object.values(worker.ejections).reduce((sum, n) => sum + n, 0),
        };
      })
    : [{ endpoint, key: endpoint.url, id: endpoint.url, state: endpoint.state, reason: endpoint.last_error, engine: endpoint.engine, models: [] }]);
}

const of = (row, value, show) => (row.traffic ? show(value) : "–");
const COLUMNS = [
  { id: "worker", name: "Worker", by: (r) => r.id, cell: (r) => html`<strong class="one" title=${r.id}>${r.id}</strong><span class="two" title=${r.models.join(", ")}>${[r.engine, r.models.join(", "), r.endpoint.role === "both" ? null : r.endpoint.role].filter(Boolean).join(" · ") || "not known yet"}</span>` },
  { id: "state", name: "State", by: (r) => r.state, cell: (r) => html`<${Chip} kind=${STATES[r.state]}>${r.state.replace("_", "-")}<//><span class="two" title=${r.reason}>${r.reason ?? (r.since ? `for ${ago(r.since)}` : "")}</span>` },
  { id: "stream", name: "Cache events", about: "How much of its cache is known", by: (r) => r.stream, cell: (r) => {
      const [kind, name] = STREAMS[r.stream] ?? ["", "none"];
      return html`<${Chip} kind=${kind}>${name}<//><span class="two" title=${r.blind?.reason}>${r.blind?.reason ?? (r.predictions?.compared ? `confidence ${percent(r.predictions.confidence)}` : "")}</span>`;
    } },
  { id: "load", name: "Running", num: true, about: "Requests that run, and wait, as the engine reports", by: (r) => r.running, cell: (r) => of(r, r.running, (n) => n === null ? "–" : html`${n}<span class="two">${r.waiting ? `${r.waiting} waiting` : "none wait"}</span>`) },
  { id: "kv", name: "Cache used", num: true, by: (r) => r.kv_usage, cell: (r) => of(r, r.kv_usage, (x) => x === null ? "–" : html`${percent(x)}<${Bar} warns share=${x} label=${`cache used: ${percent(x)}`} />`) },
  { id: "booked", name: "Booked", num: true, about: "Prompt tokens booked and not computed", by: (r) => r.booked_tokens, cell: (r) => of(r, r.booked_tokens, short) },
  { id: "speed", name: "Prefill/s", num: true, about: "Prompt tokens per second, as learnt", by: (r) => r.prefill_tokens_per_s, cell: (r) => of(r, r.prefill_tokens_per_s, short) },
  { id: "ttft", name: "TTFT p50", num: true, about: "Time to first token since the start of the gateway", by: (r) => r.p90, cell: (r) => of(r, r.p50, (x) => (x === null ? "–" : html`${seconds(x)}<span class="two">p90 ${seconds(r.p90)}</span>`)) },
  { id: "hit", name: "Hit rate", num: true, about: "Cached prompt tokens: reported by the engine, and predicted", by: (r) => r.reported, cell: (r) => of(r, r.reported, (x) => html`${percent(x)}<span class="two">predicted ${percent(r.predicted)}</span>`) },
  { id: "ejections", name: "Ejected", num: true, about: "How often it was ejected", by: (r) => r.num_ejections, cell: (r) => of(r, r.num_ejections, (n) => (n ? `${n} ×` : "never")) },
];

export function Fleet({ session, onLogin }) {
  const [fleet, setFleet] = useState(null);
  const [text, setText] = useState("");
  const [state, setState] = useState("");
  const [open, setOpen] = useState(null);
  useLive("workers", (topic, data) => setFleet(data));
  const rows = useMemo(() => (fleet ? rowsOf(fleet) : []), [fleet]);
  const shown = useMemo(() => rows.filter((r) => (!state || r.state === state) && (!text || [r.id, r.engine, ...r.models].join(" ").toLowerCase().includes(text.toLowerCase()))), [rows, text, state]);
  if (!fleet) return html`<${Head} title="Fleet" /><p class="empty">Waiting for the first answer…</p>`;
  const chosen = rows.find((r) => r.key === open);
  return html`<${Head} title="Fleet" about="Every worker, its load, and how much of its cache is known.">
      <label><span class="visually-hidden">Find workers</span><input class="field" type="search" placeholder="Find by name, model, engine" value=${text} onInput=${(e) => setText(e.target.value)} /></label>
      <label><span class="visually-hidden">State</span><select class="field" value=${state} onChange=${(e) => setState(e.target.value)}><option value="">all states</option>${[...new Set(rows.map((r) => r.state))].sort().map((s) => html`<option key=${s} value=${s}>${s.replace("_", "-")}</option>`)}</select></label>
    <//>
    <${Totals} rows=${rows} />
    <section class="panel" aria-label="Workers"><${Table} caption="Workers" columns=${COLUMNS} rows=${shown} keyOf=${(r) => r.key} onOpen=${(r) => setOpen(r.key)} initial=${{ id: "worker", down: false }} tall empty=${rows.length ? "No worker matches." : "No workers yet."} /></section>
    <${Removed} removed=${fleet.removed} />
    ${chosen ? html`<${Worker} row=${chosen} session=${session} onLogin=${onLogin} onClose=${() => setOpen(null)} />` : null}`;
}

function Totals({ rows }) {
  const workers = rows.filter((r) => r.traffic);
  const sum = (of) => workers.reduce((total, r) => total + of(r), 0);
  const well = workers.filter((r) => r.state === "active" || r.state === "slow_start").length;
  const exact = workers.filter((r) => r.stream === "exact").length;
  return html`<div class="tiles">
    <${Tile} name="Workers that take requests" sub=${well === rows.length ? "all of them" : `${rows.length - well} do not`}>${count(well)} of ${count(rows.length)}<//>
    <${Tile} name="Exactly known caches" sub="by their events">${count(exact)} of ${count(workers.length)}<//>
    <${Tile} name="Running" sub=${`${count(sum((r) => r.waiting))} wait in engines`}>${count(sum((r) => r.running))}<//>
    <${Tile} name="Booked prefill" sub="prompt tokens not computed yet">${short(sum((r) => r.booked_tokens))}<//>
    <${Tile} name="Hit rate" sub=${`${percent(ratio(sum((r) => r.traffic.predicted_cached_tokens), sum((r) => r.traffic.prompt_tokens)))} predicted`}>${percent(ratio(sum((r) => r.traffic.reported_cached_tokens), sum((r) => r.traffic.reported_prompt_tokens)), 1)}<//>
  </div>`;
}

function Removed({ removed }) {
  if (!removed.length) return null;
  const columns = [
    { id: "url", name: "Worker", cell: (g) => g.url },
    { id: "reason", name: "Reason", wrap: true, cell: (g) => g.reason },
    { id: "at", name: "When", num: true, by: (g) => g.at, cell: (g) => `${clock(g.at)}, ${ago(g.at)} ago` },
  ];
  return html`<${Panel} title="Recently removed"><${Table} caption="Removed workers" columns=${columns} rows=${removed} keyOf=${(g) => g.url + g.at} height=${40} initial=${{ id: "at", down: true }} /><//>`;
}

// What may be done with an endpoint: question, method and path.
const path = (url, more = "") => `admin/workers/${encodeURIComponent(url)}${more}`;
const ACTIONS = {
  drain: { name: "Drain", ask: "It gets no new requests, and finishes those that it has.", run: (url) => ask(path(url, "/drain"), { method: "POST", body: {} }) },
  undo: { name: "Take back", ask: "It gets requests again.", run: (url) => ask(path(url, "/drain"), { method: "DELETE" }) },
  remove: { name: "Remove", isHard: true, ask: "It leaves the fleet at once; its requests are aborted.", run: (url) => ask(path(url), { method: "DELETE" }) },
};

function Worker({ row, session, onLogin, onClose }) {
  const [wanted, setWanted] = useState(null);
  const [error, setError] = useState(null);
  const { endpoint } = row;
  const facts = [
    ["Address", endpoint.url], ["Engine", [endpoint.engine, endpoint.version].filter(Boolean).join(" ")], ["Models", row.models.join(", ")],
    ["State", [row.state.replace("_", "-"), row.reason].filter(Boolean).join(": ")], ["Since", row.since ? `${clock(row.since)}, ${ago(row.since)} ago` : ""],
    ["Cache events", row.stream], ["Reason that not all is known", row.blind?.reason], ["Proven, adopted, disproven blocks", row.blind ? [row.blind.proven_blocks, row.blind.adopted_orphan_blocks, row.blind.disproven_blocks].map(count).join(", ") : ""],
    ["Cache", row.cache_blocks ? `${count(row.cache_blocks)} blocks of ${row.block_size} tokens` : ""], ["Exact predictions lately", row.predictions?.compared ? percent(row.predictions.exact_share, 1) : ""],
    ["Requests sent", row.traffic ? count(row.traffic.requests) : ""], ["Failed", row.traffic ? count(row.failed_requests) : ""],
    ["Ejections", Object.entries(row.ejections ?? {}).map(([reason, n]) => `${n} × ${reason}`).join(", ")],
    ["Unusable models", Object.entries(row.unusable_models ?? {}).map(([name, reason]) => `${name}: ${reason}`).join("; ")],
    ["Last probe failed", endpoint.last_error],
  ].filter(([, value]) => value);
  const act = async () => {
    try { await ACTIONS[wanted].run(endpoint.url); setWanted(null); setError(null); if (wanted === "remove") onClose(); }
    catch (refused) { setError(refused); onLogin(); }
  };
  return html`<${Dialog} title=${row.id} onClose=${onClose}>
    <dl class="facts">${facts.map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${value}</dd>`)}</dl>
    <${Trouble} error=${error} />
    ${!session.may_change ? html`<p class="muted">Changes need a key with admin scope.</p>`
      : wanted ? html`<div class="confirm" role="alertdialog" aria-label=${`${ACTIONS[wanted].name} ${endpoint.url}?`}><strong>${ACTIONS[wanted].name} ${endpoint.url}?</strong><span>${ACTIONS[wanted].ask}</span>
          <div class="tools"><button class=${`btn ${ACTIONS[wanted].isHard ? "danger" : "primary"}`} onClick=${act}>${ACTIONS[wanted].name}</button><button class="btn" onClick=${() => setWanted(null)}>Cancel</button></div></div>`
      : html`<div class="actions">${["drain", "undo", "remove"].filter((id) => id === "remove" || (id === "undo") === endpoint.is_draining).map((id) => html`<button key=${id} class="btn" onClick=${() => setWanted(id)}>${ACTIONS[id].name}…</button>`)}</div>`}
  <//>`;
}
