// Decisions: the latest requests, and for one of them every candidate with what it would have cost.
import { Bar, Chip, Head, Panel, Table, Tile, Trouble, ask, clock, count, html, percent, ratio, seconds, short, useEffect, useLive, useMemo, useRef, useState } from "./lib.js";

const MOST = 10_000;
const TERMS = {
  start_s: "its usual time before prefill", booked_s: "prefill of requests ahead", prefill_s: "prefill of this prompt", fetch_s: "fetching offloaded blocks",
  wait_s: "waiting for room", price_s: "what this costs others", running_s: "running requests", slowdown_s: "delay of running requests", evict_s: "blocks it would evict",
};
const COLORS = { start_s: 7, booked_s: 2, prefill_s: 0, fetch_s: 4, wait_s: 3, price_s: 1, running_s: 6, slowdown_s: 5, evict_s: 3 };

const COLUMNS = [
  { id: "at", name: "Time", by: (r) => r.at, cell: (r) => clock(r.at) },
  { id: "id", name: "Request", cell: (r) => html`<span class="one mono" title=${r.request_id}>${r.request_id || "–"}</span>` },
  { id: "model", name: "Model", by: (r) => r.model, cell: (r) => html`<span class="one" title=${r.model}>${r.model ?? "–"}</span>` },
  { id: "tenant", name: "Tenant", by: (r) => r.tenant, cell: (r) => html`<span class="one" title=${r.tenant}>${r.tenant ?? "–"}</span>` },
  { id: "worker", name: "Worker", by: (r) => r.worker, cell: (r) => html`<span class="one" title=${r.worker}>${r.worker}</span>` },
  { id: "prompt", name: "Prompt", num: true, about: "Prompt tokens", by: (r) => r.prompt_tokens, cell: (r) => count(r.prompt_tokens) },
  { id: "cached", name: "Cached", num: true, about: "As the engine reported, and as predicted", by: (r) => ratio(r.reported_cached_tokens, r.prompt_tokens), cell: (r) => (r.reported_cached_tokens === null ? "–" : html`${percent(ratio(r.reported_cached_tokens, r.prompt_tokens))} <span class="muted">/ ${percent(ratio(r.predicted_cached_tokens, r.prompt_tokens))}</span>`) },
  { id: "ttft", name: "TTFT", num: true, about: "Measured, and predicted", by: (r) => r.ttft_s, cell: (r) => html`${seconds(r.ttft_s)} <span class="muted">/ ${seconds(r.predicted_ttft_s)}</span>` },
  { id: "total", name: "Total", num: true, by: (r) => r.total_s, cell: (r) => seconds(r.total_s) },
  { id: "status", name: "Result", by: (r) => r.status, cell: (r) => html`<${Chip} kind=${r.status && r.status < 400 && r.result === "ended" ? "good" : r.status === 499 || r.status === 429 ? "warn" : "bad"}>${r.status || ""}${r.result === "ended" ? "" : ` ${r.result}`}<//>` },
];

export const Decisions = ({ rest }) => (rest ? html`<${One} key=${rest} id=${decodeURIComponent(rest)} />` : html`<${List} />`);

function List() {
  const [rows, setRows] = useState([]);
  const [text, setText] = useState("");
  const [found, setFound] = useState(null);
  const [isHeld, setHeld] = useState(false);
  const [isAsking, setAsking] = useState(false);
  const known = useRef(new Map());
  const take = (requests) => {
    for (const each of requests) known.current.set(each.id, each);
    const sorted = [...known.current.values()].sort((a, b) => b.at - a.at).slice(0, MOST);
    known.current = new Map(sorted.map((each) => [each.id, each]));
    if (!isHeld) setRows(sorted);
  };
  useLive("requests", (topic, data) => take(data.requests));
  useEffect(() => { ask("admin/requests?limit=2000").then((data) => take(data.requests)).catch(() => {}); }, []);
  useEffect(() => {
    if (!text.trim()) { setFound(null); return undefined; }
    const timer = setTimeout(() => ask(`admin/requests?limit=200&id=${encodeURIComponent(text.trim())}`).then((data) => setFound(data.requests)).catch(() => setFound([])), 200);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<${Head} title="Decisions" about="Requests that went to a worker and have ended, newest first. Open one to see every candidate and its cost.">
      <label><span class="visually-hidden">Find a request</span><input class="field mono" type="search" placeholder="request or decision id" value=${text} onInput=${(e) => setText(e.target.value)} /></label>
      <button class="btn" aria-pressed=${isHeld} onClick=${() => setHeld(!isHeld)}>${isHeld ? "Go on" : "Hold"}</button>
      <button class="btn" aria-expanded=${isAsking} onClick=${() => setAsking(!isAsking)}>Explain a prompt</button>
    <//>
    ${isAsking ? html`<${Explain} />` : null}
    <section class="panel" aria-label="Requests"><${Table} caption="Requests" columns=${COLUMNS} rows=${found ?? rows} keyOf=${(r) => r.id} height=${40} tall onOpen=${(r) => { location.hash = `decisions/${encodeURIComponent(r.id)}`; }} empty=${text ? "No request id matches; the gateway keeps the latest 10,000." : "No request has ended yet."} /></section>`;
}

function Explain() {
  const [models, setModels] = useState([]);
  const [said, setSaid] = useState({});
  useEffect(() => { ask("admin/workers").then((fleet) => setModels([...new Set(fleet.endpoints.flatMap((e) => e.workers.flatMap((w) => w.models)))].sort())).catch((error) => setSaid({ error })); }, []);
  const submit = async (event) => {
    event.preventDefault();
    const { model, prompt } = event.target.elements;
    try { setSaid({ record: await ask("admin/explain", { method: "POST", body: { model: model.value, messages: [{ role: "user", content: prompt.value }] } }) }); }
    catch (error) { setSaid({ error }); }
  };
  return html`<${Panel} title="Where would this prompt go now?" about="Nothing is sent to a worker, and nothing is booked."><form class="body tiles" onSubmit=${submit}>
      <label class="stack">Model<select class="field" name="model">${models.map((m) => html`<option key=${m} value=${m}>${m}</option>`)}</select></label>
      <label class="stack">A user's message<textarea class="field" name="prompt" required></textarea></label>
      <div><button class="btn primary" type="submit">Explain</button></div></form><//>
    <${Trouble} error=${said.error} />${said.record ? html`<${Record} record=${said.record} />` : null}`;
}

function One({ id }) {
  const [said, setSaid] = useState({});
  useLive("requests", () => {});
  useEffect(() => { ask(`admin/decisions/${encodeURIComponent(id)}`).then((record) => setSaid({ record })).catch((error) => setSaid({ error })); }, [id]);
  return html`<${Head} title="One decision" about=${id}><a class="btn" href="#decisions">All decisions</a><//><${Trouble} error=${said.error} />${said.record ? html`<${Record} record=${said.record} />` : null}`;
}

// A sentence, what came of it, and the candidates, the cheapest first.
function Record({ record }) {
  const { outcome } = record;
  const candidates = useMemo(() => [...record.candidates].sort((a, b) => (a.cost ?? 0) - (b.cost ?? 0)), [record]);
  const terms = Object.keys(TERMS).filter((term) => candidates.some((c) => (c.terms?.[term] ?? 0) > 0));
  const most = Math.max(...candidates.map((c) => terms.reduce((sum, term) => sum + Math.max(0, c.terms?.[term] ?? 0), 0)), 1e-9);
  const best = candidates.find((c) => c.worker === record.worker);
  return html`<section class="panel"><p class="verdict"><strong>${record.worker}</strong> got this request for <strong>${record.model}</strong>: ${record.reason}.</p></section>
    <div class="tiles">
      <${Tile} name="Prompt tokens" sub=${`tokenized by ${record.tokenized_by}`}>${count(record.prompt_tokens)}<//>
      <${Tile} name="Cached, predicted" sub=${`${count(record.overlap_tokens)} tokens`}>${percent(ratio(record.overlap_tokens, record.prompt_tokens))}<//>
      <${Tile} name="Cached, reported" sub=${outcome?.reported_cached_tokens === null || !outcome ? "not reported" : `${count(outcome.reported_cached_tokens)} tokens`}>${percent(ratio(outcome?.reported_cached_tokens, outcome?.reported_prompt_tokens))}<//>
      <${Tile} name="TTFT, predicted" sub=${record.policy}>${seconds(record.predicted_ttft_s)}<//>
      <${Tile} name="TTFT, measured" sub=${outcome ? `${outcome.result}, status ${outcome.status}` : "not ended"}>${seconds(outcome?.ttft_s)}<//>
    </div>
    <${Panel} title=${`${candidates.length} ${candidates.length === 1 ? "candidate" : "candidates"}`} about=${terms.length ? "Cost of each in seconds; the lowest is chosen." : `The policy ${record.policy} explains no costs.`}>
      <ul class="legend">${terms.map((term) => html`<li key=${term}><i class=${`s${COLORS[term]}`}></i>${TERMS[term]}</li>`)}</ul>
      <${Table} caption="Candidates" columns=${candidateColumns(record, terms, most, best)} rows=${candidates} keyOf=${(c) => c.worker} chosen=${(c) => c.worker === record.worker} />
    <//>
    ${record.disaggregation ? html`<${Panel} title="Prefill on another worker" about=${record.disaggregation.reason}><dl class="facts body"><dt>Prefill worker</dt><dd>${record.disaggregation.prefill_worker ?? "none"}</dd><dt>TTFT with it</dt><dd>${seconds(record.disaggregation.disaggregated_ttft_s)}</dd><dt>TTFT without</dt><dd>${seconds(record.disaggregation.direct_ttft_s)}</dd></dl><//>` : null}`;
}

function candidateColumns(record, terms, most, best) {
  const why = (c) => {
    if (c.worker === record.worker) return "chosen";
    if (c.cost === null || !best || best.cost === null) return "";
    const worse = terms.map((term) => [term, (c.terms?.[term] ?? 0) - (best.terms?.[term] ?? 0)]).sort((a, b) => b[1] - a[1])[0];
    return c.cost - best.cost < 1e-6 ? "as good" : `${seconds(c.cost - best.cost)} more${worse && worse[1] > 0 ? `, above all ${TERMS[worse[0]]}` : ""}`;
  };
  const bars = { id: "bars", name: "Cost", cell: (c) => html`<span class="terms" role="img" aria-label=${terms.map((term) => `${TERMS[term]} ${seconds(c.terms?.[term])}`).join(", ")}>${terms.map((term) => html`<i key=${term} class=${`s${COLORS[term]}`} title=${`${TERMS[term]}: ${seconds(c.terms?.[term])}`} style=${{ width: `${(100 * Math.max(0, c.terms?.[term] ?? 0)) / most}%` }}></i>`)}</span>` };
  return [
    { id: "worker", name: "Worker", cell: (c) => html`<strong class="one" title=${c.worker}>${c.worker}</strong><span class="two long" title=${why(c)}>${why(c)}</span>` },
    { id: "cost", name: "Seconds", num: true, cell: (c) => (terms.length ? seconds(c.cost) : c.cost === null ? "–" : c.cost.toPrecision(3)) },
    ...(terms.length ? [bars] : []),
    { id: "overlap", name: "Cached", num: true, cell: (c) => html`${count(c.overlap_tokens)}<${Bar} share=${ratio(c.overlap_tokens, record.prompt_tokens) ?? 0} label=${`${count(c.overlap_tokens)} tokens cached`} />` },
    { id: "uncached", name: "To compute", num: true, cell: (c) => count(c.uncached_tokens) },
    { id: "booked", name: "Booked", num: true, cell: (c) => count(c.booked_tokens) },
    { id: "flight", name: "In flight", num: true, cell: (c) => html`${c.in_flight}<span class="two">${c.waiting ?? "–"} waiting</span>` },
    { id: "kv", name: "Cache used", num: true, cell: (c) => percent(c.kv_usage) },
    { id: "confidence", name: "Confidence", num: true, cell: (c) => html`${percent(c.confidence)}<span class="two">${c.is_exact ? "exact" : "not exact"}</span>` },
  ];
}
