// Scaling: how many workers each model and role needs, and which one costs least to lose. The gateway advises; an autoscaler acts.
import { Bar, Head, Panel, Table, Trouble, count, html, percent, seconds, short, useAnswer, useLive } from "./lib.js";

const nothing = () => {};
const one = (n) => (n === null || n === undefined ? "–" : n.toFixed(1));
const whole = (n) => (n === null || n === undefined ? "–" : count(Math.round(n)));
const SHOWN = 8;

export function Scaling() {
  useLive("traffic", nothing);
  const advice = useAnswer("admin/advice", 5);
  const groups = advice.data?.groups ?? [];
  const columns = [
    { id: "model", name: "Model", by: (g) => g.model, cell: (g) => html`<strong class="one" title=${g.model}>${g.model}</strong>` },
    { id: "role", name: "Role", by: (g) => g.role, cell: (g) => g.role },
    { id: "workers", name: "Workers", num: true, by: (g) => g.workers, cell: (g) => count(g.workers) },
    { id: "desired", name: "Advised", num: true, about: "Workers that meet the objectives: up at once, down after a while", by: (g) => g.desired_workers, cell: (g) => html`<strong>${count(Math.ceil(g.desired_workers - 1e-9) || 0)}</strong>` },
    { id: "needed", name: "Needed", num: true, about: "For the last minute, with an interval of 90 %", by: (g) => g.needed_workers, cell: (g) => html`${one(g.needed_workers)} <span class="muted">(${one(g.needed_low)} to ${one(g.needed_high)})</span>` },
    { id: "utilization", name: "Used", by: (g) => g.utilization, cell: (g) => html`<span class="meter"><${Bar} warns share=${g.utilization} label=${`utilization: ${percent(g.utilization)}`} />${percent(g.utilization)}</span>` },
    { id: "demand", name: "Requests/s", num: true, by: (g) => g.demand.requests_per_s, cell: (g) => html`${one(g.demand.requests_per_s)} <span class="muted">of ${one(g.worker_capacity.requests_per_s * g.workers)}</span>` },
    { id: "backlog", name: "Backlog", num: true, about: "Seconds until what waits is computed", by: (g) => g.backlog_s, cell: (g) => html`${seconds(g.backlog_s)}${g.queued_requests ? html` <span class="muted">${count(g.queued_requests)} queued</span>` : null}` },
    { id: "ttft", name: "TTFT", num: true, about: "Predicted for a request that comes now", by: (g) => g.ttft_s, cell: (g) => seconds(g.ttft_s) },
    { id: "attainment", name: "In time", num: true, about: "Share of the requests of five minutes that met the objective", by: (g) => g.slo_attainment, cell: (g) => (g.objective_is_reachable ? percent(g.slo_attainment, 1) : html`<span title="An idle worker takes longer">not reachable</span>`) },
    { id: "start", name: "Cold start", num: true, by: (g) => g.cold_start_s, cell: (g) => seconds(g.cold_start_s) },
  ];
  return html`<${Head} title="Scaling" about="Workers that would meet the objectives, by the traffic of the last minutes. kvgate advises; KEDA or an HPA acts." />
    <${Trouble} error=${advice.error} />
    <section class="panel" aria-label="Advice"><${Table} caption="Advice" columns=${columns} rows=${groups} keyOf=${(g) => g.id} height=${40} initial=${{ id: "utilization", down: true }} empty="No model is served yet." /></section>
    ${groups.filter((g) => g.remove.length > 1).map((g) => html`<${Removals} key=${g.id} group=${g} />`)}
    <${Split} rows=${advice.data?.prefill_decode ?? []} />`;
}

function Removals({ group }) {
  const columns = [
    { id: "worker", name: "Worker", cell: (r) => html`<span class="mono one" title=${r.worker}>${r.worker}</span>` },
    { id: "own", name: "Tokens cached nowhere else", num: true, cell: (r) => (r.unique_cached_tokens === null ? "not known" : short(r.unique_cached_tokens)) },
  ];
  const about = group.remove.length > SHOWN ? `The ${SHOWN} of ${count(group.remove.length)} workers that cost least to lose` : "The cheapest first";
  return html`<${Panel} title=${`To remove first: ${group.model}, ${group.role}`} about=${about}><${Table} caption=${`To remove first: ${group.id}`} columns=${columns} rows=${group.remove.slice(0, SHOWN)} keyOf=${(r) => r.worker} height=${40} /><//>`;
}

function Split({ rows }) {
  const columns = [
    { id: "model", name: "Model", cell: (r) => html`<span class="one" title=${r.model}>${r.model}</span>` },
    { id: "prefill", name: "Prefill workers", num: true, about: "Advised, of as many as accept requests now", cell: (r) => whole(r.prefill_workers) },
    { id: "decode", name: "Decode workers", num: true, about: "Advised, of as many as accept requests now", cell: (r) => whole(r.decode_workers) },
    { id: "share", name: "Prefill share", cell: (r) => html`<${Bar} wide share=${r.prefill_share} label=${`prefill share: ${percent(r.prefill_share)}`} /> ${percent(r.prefill_share)} <span class="muted">(${percent(r.prefill_share_low)} to ${percent(r.prefill_share_high)})</span>` },
    { id: "serves", name: "Requests/s", num: true, about: "That the advised workers serve within the objectives, and those of now", cell: (r) => html`${one(r.requests_per_s)} <span class="muted">now ${one(r.present_requests_per_s)}</span>` },
  ];
  if (!rows.length) return null;
  return html`<${Panel} title="Prefill and decode" about="The split that serves this traffic best"><${Table} caption="Prefill and decode" columns=${columns} rows=${rows} keyOf=${(r) => r.model} height=${40} /><//>`;
}
