// The console: the frame around the pages, login, and what is said while the gateway is away.
// lib.js has what pages share; a page is one file: fleet.js, decisions.js, traffic.js, cache.js, tenants.js, policies.js, scaling.js.
import { Refused, ago, ask, clock, html, render, useEffect, useLink, useState } from "./lib.js";
import { Fleet } from "./fleet.js";
import { Decisions } from "./decisions.js";
import { Traffic } from "./traffic.js";
import { Cache } from "./cache.js";
import { Tenants } from "./tenants.js";
import { Policies } from "./policies.js";
import { Scaling } from "./scaling.js";

const PAGES = [
  ["fleet", "Fleet", Fleet],
  ["decisions", "Decisions", Decisions],
  ["traffic", "Traffic", Traffic],
  ["cache", "Cache", Cache],
  ["tenants", "Tenants", Tenants],
  ["policies", "Policies", Policies],
  ["scaling", "Scaling", Scaling],
];

const place = () => location.hash.slice(1).split("/");

function usePlace() {
  const [here, setHere] = useState(place());
  useEffect(() => {
    const look = () => setHere(place());
    window.addEventListener("hashchange", look);
    return () => window.removeEventListener("hashchange", look);
  }, []);
  return here;
}

function useSession() {
  const [session, setSession] = useState(null);
  const look = async () => {
    try { setSession(await ask("session")); }
    catch (error) { if (!(error instanceof Refused)) setTimeout(look, 1500); else setSession({ error }); }
  };
  useEffect(() => {
    look();
    const names = ["kvgate:look", "kvgate:session-ended"];
    for (const name of names) window.addEventListener(name, look);
    return () => { for (const name of names) window.removeEventListener(name, look); };
  }, []);
  return [session, look];
}

function Login({ onDone }) {
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const field = event.target.elements.key;
    try { await ask("login", { method: "POST", body: { key: field.value.trim() } }); field.value = ""; onDone(); }
    catch (refused) { setError(refused); field.select(); }
  };
  return html`<main class="login"><section class="panel"><form onSubmit=${submit}>
    <div class="brand"><img src="console/icon.svg" alt="" />kvgate</div>
    <div><h1>Log in</h1><p class="muted">With a key that has admin scope. The browser keeps a session, not the key.</p></div>
    <label class="stack">Admin key<input class="field" name="key" type="password" autocomplete="off" required autofocus /></label>
    ${error ? html`<p class="error" role="alert">${error.message}</p>` : null}
    <button class="btn primary" type="submit">Log in</button>
  </form></section></main>`;
}

function Stale() {
  const link = useLink();
  if (link.lostAt === null) return null;
  return html`<p class="banner" role="status">The gateway does not answer. The figures are of ${clock(link.lostAt / 1000)}, ${ago(link.lostAt / 1000)} ago; connecting again.</p>`;
}

function Side({ here, session, onLogout }) {
  const link = useLink();
  return html`<aside class="side">
    <div class="brand"><img src="console/icon.svg" alt="" />kvgate</div>
    <nav aria-label="Pages">${PAGES.map(([id, name]) => html`<a key=${id} href=${`#${id}`} aria-current=${id === here ? "page" : undefined}>${name}</a>`)}</nav>
    <div class="foot">
      <span class="link"><span class=${`pulse ${link.isLive ? "" : "off"}`}></span>${link.isLive ? "live" : "connecting"}</span>
      ${session.key ? html`<span>key ${session.key}</span><button class="btn small" onClick=${onLogout}>Log out</button>` : null}
    </div></aside>`;
}

function App() {
  const [here, rest] = usePlace();
  const [session, look] = useSession();
  const [, name, Page] = PAGES.find(([id]) => id === here) ?? PAGES[0];
  useEffect(() => { document.title = `${name} · kvgate`; }, [name]);
  if (session === null) return html`<p class="starting">Connecting…</p>`;
  if (session.error) return html`<p class="starting" role="alert">${session.error.message}</p>`;
  if (!session.may_read) return html`<${Login} onDone=${look} />`;
  const logout = async () => { await ask("logout", { method: "POST", body: {} }); look(); };
  return html`<a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.getElementById("content").focus(); }}>To the page</a>
    <div class="shell"><${Side} here=${PAGES.some(([id]) => id === here) ? here : "fleet"} session=${session} onLogout=${logout} />
    <main id="content" tabindex="-1"><${Stale} /><${Page} key=${name} rest=${rest} session=${session} onLogin=${look} /></main></div>`;
}

render(html`<${App} />`, document.getElementById("app"));
document.querySelector("#app > .starting")?.remove();
