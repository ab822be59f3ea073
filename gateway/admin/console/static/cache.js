// Cache: prompt tokens that were computed again, by cause; how much of each worker's cache is known; what verification says.
import { Bar, Chip, Head, Panel, Table, Tile, Trouble, count, html, percent, ratio, short, useAnswer, useLive } from "./lib.js";

const words = (id) => id.replaceAll("_", " ");
const nothing = () => {};

export function Cache() {
  useLive("traffic", nothing);
  const losses = useAnswer("admin/cache-loss"), index = useAnswer("admin/index"), checks = useAnswer("admin/verify");
  if (!losses.data || !index.data || !checks.data) return html`<${Head} title="Cache" /><${Trouble} error=${losses.error ?? index.error ?? checks.error} /><p class="empty">Waiting for the first answer…</p>`;
  const { data } = losses;
  const again = data.causes.reduce((sum, c) => sum + c.recomputed_tokens, 0);
  return html`<${Head} title="Cache" about="Prompt tokens that were computed again, by cause, and how much of each worker's cache is known." />
    <div class="tiles">
      <${Tile} name="Computed" sub="prompt tokens since the start">${short(data.computed_tokens)}<//>
      <${Tile} name="Never seen before" sub="no cache could have had them">${percent(ratio(data.new_tokens, data.computed_tokens))}<//>
      <${Tile} name="Computed again" sub=${`${short(again)} tokens`}>${percent(ratio(again, data.computed_tokens), 1)}<//>
      <${Tile} name="Not attributed" sub="tokens">${short(data.unattributed_tokens)}<//>
      <${Tile} name="Avoided work ahead" sub="tokens, by routing elsewhere">${short(data.avoided_queue_tokens)}<//>
    </div>
    <div class="grid2"><${Causes} causes=${data.causes} again=${again} /><${Known} workers=${index.data.workers} /></div>
    <${Largest} losses=${data.largest} /><${Checks} workers=${checks.data.workers} />`;
}

function Causes({ causes, again }) {
  const columns = [
    { id: "id", name: "Cause", cell: (c) => words(c.id) },
    { id: "tokens", name: "Tokens", num: true, by: (c) => c.recomputed_tokens, cell: (c) => count(c.recomputed_tokens) },
    { id: "share", name: "Share", cell: (c) => html`<${Bar} wide share=${ratio(c.recomputed_tokens, again)} />` },
  ];
  return html`<${Panel} title="Computed again, by cause"><${Table} caption="Computed again, by cause" columns=${columns} rows=${causes} keyOf=${(c) => c.id} height=${40} initial=${{ id: "tokens", down: true }} empty="Nothing was computed twice." /><//>`;
}

function Known({ workers }) {
  const columns = [
    { id: "worker", name: "Worker", by: (w) => w.worker, cell: (w) => html`<span class="one">${w.worker}</span>` },
    { id: "blocks", name: "Blocks", num: true, about: "Reported by its events", by: (w) => w.blocks, cell: (w) => count(w.blocks) },
    { id: "assumed", name: "Assumed", num: true, about: "From answers", by: (w) => w.assumed_blocks, cell: (w) => count(w.assumed_blocks) },
    { id: "stored", name: "Stored", num: true, by: (w) => w.applied.stored_blocks, cell: (w) => short(w.applied.stored_blocks) },
    { id: "removed", name: "Removed", num: true, by: (w) => w.applied.removed_blocks, cell: (w) => short(w.applied.removed_blocks) },
  ];
  return html`<${Panel} title="Index" about="Blocks known of each worker"><${Table} caption="Blocks known of each worker" columns=${columns} rows=${workers} keyOf=${(w) => w.worker} height=${40} initial=${{ id: "worker", down: false }} /><//>`;
}

function Largest({ losses }) {
  const where = (b) => (b ? [b.message === null || b.message === undefined ? null : `message ${b.message}`, b.role, `token ${count(b.token)}`, b.text].filter((x) => x !== null && x !== undefined).join(", ") : "–");
  const columns = [
    { id: "cause", name: "Cause", by: (l) => l.cause, cell: (l) => words(l.cause) },
    { id: "model", name: "Model", by: (l) => l.model, cell: (l) => html`<span class="one" title=${l.model}>${l.model}</span>` },
    { id: "tokens", name: "Tokens", num: true, by: (l) => l.recomputed_tokens ?? 0, cell: (l) => count(l.recomputed_tokens ?? 0) },
    { id: "requests", name: "Requests", num: true, by: (l) => l.recomputed_requests ?? 0, cell: (l) => count(l.recomputed_requests ?? 0) },
    { id: "worker", name: "Computed by", cell: (l) => l.worker ?? "–" },
    { id: "holder", name: "Cached at", cell: (l) => l.holder ?? "–" },
    { id: "broken", name: "Prefix break", cell: (l) => html`<span class="one">${where(l.prefix_break)}</span>` },
    { id: "latest", name: "Latest", cell: (l) => (l.latest_decision_id ? html`<a href=${`#decisions/${encodeURIComponent(l.latest_decision_id)}`}>decision</a>` : "") },
  ];
  return html`<${Panel} title="Largest losses"><${Table} caption="Largest losses" columns=${columns} rows=${losses} keyOf=${(l) => l.id} height=${40} initial=${{ id: "tokens", down: true }} empty="No losses." /><//>`;
}

function Checks({ workers }) {
  const columns = [
    { id: "worker", name: "Worker", by: (w) => w.worker, cell: (w) => html`<span class="one">${w.worker}</span>` },
    { id: "tokens", name: "Token parity", by: (w) => w.token_parity, cell: (w) => html`<${Chip} kind=${w.token_parity === "agree" ? "good" : "bad"}>${w.token_parity}<//>` },
    { id: "compared", name: "Compared", num: true, by: (w) => w.compared, cell: (w) => count(w.compared) },
    { id: "unknown", name: "Unknown", num: true, about: "Answers with more cached than kvgate can know", by: (w) => w.unknown, cell: (w) => count(w.unknown) },
    { id: "right", name: "Exact", num: true, by: (w) => w.exact_share, cell: (w) => percent(w.exact_share, 1) },
    { id: "error", name: "Mean error", num: true, about: "Tokens", by: (w) => w.mean_absolute_error_tokens, cell: (w) => (w.mean_absolute_error_tokens === null ? "–" : short(w.mean_absolute_error_tokens)) },
    { id: "confidence", name: "Confidence", num: true, by: (w) => w.confidence, cell: (w) => percent(w.confidence) },
    { id: "causes", name: "Mispredictions by cause", cell: (w) => Object.entries(w.mispredictions).filter(([, n]) => n).map(([cause, n]) => `${words(cause)}: ${count(n)}`).join(", ") || "–" },
  ];
  return html`<${Panel} title="Verification" about="Predicted cached tokens beside those that engines report"><${Table} caption="Verification" columns=${columns} rows=${workers} keyOf=${(w) => w.worker} height=${40} initial=${{ id: "worker", down: false }} /><//>`;
}
