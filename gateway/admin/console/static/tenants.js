// Tenants: what each one asked for and saved, of the latest requests; and its limits.
import { Bar, Head, Panel, Table, Trouble, count, html, percent, ratio, seconds, short, useAnswer, useLive, useMemo } from "./lib.js";

const nothing = () => {};
const NONE = "no tenant named";

export function rowsOf(requests) {
  const rows = new Map();
  for (const each of requests) {
    const name = each.tenant ?? NONE;
    const row = rows.get(name) ?? { name, requests: 0, failed: 0, prompt: 0, cached: 0, compared: 0, output: 0, ttft: [] };
    rows.set(name, row);
    row.requests += 1;
    row.failed += each.status >= 400 || each.result !== "ended" ? 1 : 0;
    row.prompt += each.prompt_tokens ?? 0;
    row.output += each.output_tokens ?? 0;
    if (each.reported_cached_tokens !== null) { row.cached += each.reported_cached_tokens; row.compared += each.prompt_tokens ?? 0; }
    if (each.ttft_s !== null) row.ttft.push(each.ttft_s);
  }
  for (const row of rows.values()) row.p90 = row.ttft.sort((a, b) => a - b)[Math.floor(0.9 * row.ttft.length)] ?? null;
  return [...rows.values()];
}

export function Tenants() {
  useLive("traffic", nothing);
  const latest = useAnswer("admin/requests", 10), admission = useAnswer("admin/admission", 5);
  const rows = useMemo(() => rowsOf(latest.data?.requests ?? []), [latest.data]);
  const saved = rows.reduce((sum, r) => sum + r.cached, 0);
  const columns = [
    { id: "name", name: "Tenant", by: (r) => r.name, cell: (r) => html`<strong class="one" title=${r.name}>${r.name}</strong>` },
    { id: "requests", name: "Requests", num: true, by: (r) => r.requests, cell: (r) => count(r.requests) },
    { id: "failed", name: "Failed", num: true, by: (r) => r.failed, cell: (r) => count(r.failed) },
    { id: "computed", name: "Prompt tokens computed", num: true, by: (r) => r.prompt - r.cached, cell: (r) => short(r.prompt - r.cached) },
    { id: "cached", name: "Cached", num: true, by: (r) => r.cached, cell: (r) => short(r.cached) },
    { id: "output", name: "Output", num: true, by: (r) => r.output, cell: (r) => short(r.output) },
    { id: "hit", name: "Hit rate", num: true, by: (r) => ratio(r.cached, r.compared), cell: (r) => percent(ratio(r.cached, r.compared), 1) },
    { id: "p90", name: "TTFT p90", num: true, by: (r) => r.p90, cell: (r) => seconds(r.p90) },
    { id: "share", name: "Share of savings", by: (r) => r.cached, cell: (r) => html`<${Bar} wide share=${ratio(r.cached, saved)} label=${`share of savings: ${percent(ratio(r.cached, saved))}`} />` },
  ];
  return html`<${Head} title="Tenants" about=${`Of the latest ${count(latest.data?.requests.length ?? 0)} requests; a request is counted when it ends.`} />
    <${Trouble} error=${latest.error} />
    <section class="panel" aria-label="Tenants"><${Table} caption="Tenants" columns=${columns} rows=${rows} keyOf=${(r) => r.name} height=${40} initial=${{ id: "computed", down: true }} empty="No request has ended yet." /></section>
    <${Limits} admission=${admission.data} /><${Rejections} admission=${admission.data} />`;
}

function Limits({ admission }) {
  const columns = [
    { id: "name", name: "Tenant", by: (t) => t.name, cell: (t) => html`<span class="one" title=${t.name}>${t.name}</span>` },
    { id: "busy", name: "In flight", num: true, by: (t) => t.in_flight, cell: (t) => count(t.in_flight) },
    { id: "requests", name: "Requests remaining", num: true, by: (t) => t.remaining_requests, cell: (t) => (t.remaining_requests === null ? "no limit" : short(t.remaining_requests)) },
    { id: "tokens", name: "Tokens remaining", num: true, by: (t) => t.remaining_tokens, cell: (t) => (t.remaining_tokens === null ? "no limit" : short(t.remaining_tokens)) },
    { id: "weight", name: "Share of the queue", num: true, by: (t) => t.weight, cell: (t) => t.weight },
  ];
  return html`<${Panel} title="Limits, and what remains"><${Table} caption="Limits" columns=${columns} rows=${admission?.tenants ?? []} keyOf=${(t) => t.name} height=${40} initial=${{ id: "busy", down: true }} empty=${admission?.is_enabled ? "No tenant is known yet." : "Admission control is off."} /><//>`;
}

function Rejections({ admission }) {
  const columns = [
    { id: "tenant", name: "Tenant", by: (r) => r.tenant, cell: (r) => html`<span class="one" title=${r.tenant}>${r.tenant}</span>` },
    { id: "model", name: "Model", by: (r) => r.model, cell: (r) => html`<span class="one" title=${r.model}>${r.model}</span>` },
    { id: "status", name: "Status", num: true, by: (r) => r.status, cell: (r) => r.status },
    { id: "error", name: "Error", by: (r) => r.error, cell: (r) => html`<span class="mono">${r.error}</span>` },
    { id: "message", name: "Message", wrap: true, cell: (r) => r.message },
  ];
  if (!admission?.rejections.length) return null;
  return html`<${Panel} title="Rejected lately" about="Newest first"><${Table} caption="Rejected lately" columns=${columns} rows=${admission.rejections} keyOf=${(r) => r.id} /><//>`;
}
