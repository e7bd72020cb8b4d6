// Keeps an open page true: blocks that changed come from the server as they are rendered there. Also times that go on,
// keys, the theme. Works without the rest: a page is complete without any script.

import { Place } from "./connections.js";
import { visible } from "./text.js";

const body = document.body;
const notice = document.querySelector("[data-notice]");
const liveState = document.querySelector("[data-live-state]");
let clockOffsetUs = 0; // the server's clock minus this one's
let awaySince = null;

const nowUs = () => Date.now() * 1000 + clockOffsetUs;

// --- times ---

const UNITS = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];

function words(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  for (let at = 0; at < UNITS.length; at++) {
    const [size, unit] = UNITS[at];
    if (whole >= size || unit === "s") {
      const rest = UNITS[at + 1];
      const second = rest ? Math.floor((whole % size) / rest[0]) : 0;
      return `${Math.floor(whole / size)}${unit}` + (second ? ` ${second}${rest[1]}` : "");
    }
  }
  return "";
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function showTimes(root = document) {
  const now = nowUs();
  for (const element of root.querySelectorAll("time[data-us]")) {
    const seconds = (now - Number(element.dataset.us)) / 1e6;
    const text = words(Math.abs(seconds)).split(" ")[0];
    setText(element, seconds < -1 ? `in ${text}` : `${text} ago`);
  }
  for (const element of root.querySelectorAll("time[data-since]")) {
    setText(element, words((now - Number(element.dataset.since)) / 1e6));
  }
}

// --- the server's blocks ---

// A click is lost if what is pressed is replaced before it is let go: the block then waits for that.
let pressed = null;
const waiting = new Map(); // name of a block → its newest content

function letGo() {
  pressed = null;
  for (const [name, html] of waiting) replaceBlock(name, html);
  waiting.clear();
}

document.addEventListener("pointerdown", (event) => { pressed = event.target; }, { capture: true });
// The click comes after pointerup, and is handled before this timer.
for (const kind of ["pointerup", "pointercancel"]) {
  document.addEventListener(kind, () => setTimeout(letGo), { capture: true });
}
window.addEventListener("blur", letGo);

// What an element is for: the same in the block that replaces its own. Cordon and Uncordon are one button.
const DEEDS = ["act", "edit", "remove", "history", "add", "again"];
const ONLY = ["cordon", "invite", "terminate", "submit", "pickAll"];

function purposeOf(element) {
  const { dataset, tagName } = element;
  const only = ONLY.find((name) => name in dataset);
  const row = "pick" in dataset ? element.value : null;
  return JSON.stringify([tagName, only, element.getAttribute("href"), row, element.ariaLabel, ...DEEDS.map((name) => dataset[name])]);
}

// If the element is gone, its block has the focus: Tab goes on from there, not from the top of the page.
function focusAgain(block, purpose) {
  const same = [...block.querySelectorAll("a, button, input, summary, [tabindex]")].find((one) => purposeOf(one) === purpose);
  if (!same && !block.hasAttribute("tabindex")) block.tabIndex = -1;
  (same ?? block).focus({ preventScroll: true });
}

// A dialog gives the focus back to the button that opened it, or to nobody if that button was replaced meanwhile.
let focused = null; // the last one in a block: the name of the block, and the purpose
document.addEventListener("focusin", (event) => {
  const block = event.target.closest("[data-block]");
  if (!event.target.closest("dialog")) focused = block && { block: block.dataset.block, purpose: purposeOf(event.target) };
});
document.addEventListener("close", (event) => {
  const block = focused && document.querySelector(`[data-block="${CSS.escape(focused.block)}"]`);
  const isLost = document.activeElement === body || event.target.contains(document.activeElement);
  if (block && isLost && !event.target.open) focusAgain(block, focused.purpose);
}, { capture: true });

function replaceBlock(name, html) {
  const element = document.querySelector(`[data-block="${CSS.escape(name)}"]`);
  if (!element) return;
  if (pressed && element.contains(pressed)) {
    waiting.set(name, html);
    return;
  }
  const purpose = element.contains(document.activeElement) ? purposeOf(document.activeElement) : null;
  const opened = [...element.querySelectorAll("details[open][id]")].map((details) => details.id);
  element.innerHTML = html; // rendered and escaped by the server, as the page itself was
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  showTimes(element);
  if (purpose) focusAgain(element, purpose);
  document.dispatchEvent(new CustomEvent("yard:block", { detail: { name, element } }));
}

function setLive(isOn, text) {
  liveState.dataset.on = isOn ? "yes" : "no";
  setText(liveState, text);
}

function isBack() {
  heardAt = Date.now();
  awaySince = null;
  notice.hidden = true;
  setLive(true, "live");
}

function isAway(why) {
  awaySince ??= new Date(heardAt);
  setLive(false, "not live");
  notice.hidden = false;
  setText(notice, `${why} What you see is from ${awaySince.toLocaleTimeString()}; this page tries again by itself.`);
}

function signIn() {
  location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`);
}

// Asks once for the blocks alone: for the reason why a stream was refused, and where a page has no stream.
async function poll(turn) {
  const answer = await fetch(location.href, { headers: { accept: "application/json" }, cache: "no-store", signal: AbortSignal.timeout?.(10000) });
  if (answer.status === 401) return signIn();
  if ([403, 404].includes(answer.status) && answer.headers.get("content-type")?.includes("problem+json")) {
    location.reload(); // the page may not be shown any more, or its object is gone: the server says which
    return undefined;
  }
  if (!answer.ok) {
    const problem = await answer.json().catch(() => ({}));
    throw new Error(visible(problem.detail || `The server answers ${answer.status}.`));
  }
  const blocks = await answer.json();
  if (turn !== turns) return undefined; // the page follows in another way by now, or shows another view
  for (const [name, html] of Object.entries(blocks)) replaceBlock(name, html);
  isBack();
  return undefined;
}

function away(error, turn) {
  if (turn !== turns) return;
  isAway(error instanceof TypeError || error.name === "TimeoutError" ? "The server does not answer." : error.message);
}

const RELOAD_PAUSE_MS = 60000;
const POLL_MS = 5000;
const POLL_INSTEAD_MS = 60000; // where a stream is not heard, as behind a proxy that keeps it back
const place = new Place();
let stream = null;
let retryTimer = 0;
let turns = 0; // counts how often the page began to follow: an answer to an earlier turn is out of date
let retryMs = 1000;
let beatMs = 5000;
let heardAt = Date.now();
let streamedAt = 0; // when the page asked for its stream
let isHeard = false; // the stream has said something
let pollUntil = 0;
let tickedAt = Date.now();

// A server that hangs, or a network that swallows everything, closes no connection: silence shows it. If this timer was
// silent, too, the machine slept or the browser had frozen the page: the page begins anew.
setInterval(() => {
  const now = Date.now();
  const hasSlept = now - tickedAt > 3 * beatMs;
  tickedAt = now;
  if (!stream) return;
  if (hasSlept || (stream.readyState === EventSource.OPEN && !place.isHeld())) {
    follow();
  } else if (!isHeard && stream.readyState !== EventSource.CLOSED && now - streamedAt > 3 * beatMs) {
    pollUntil = now + POLL_INSTEAD_MS;
    follow();
  } else if (isHeard && stream.readyState === EventSource.OPEN && now - heardAt > 3 * beatMs) {
    stream.close();
    isAway("The server is silent.");
    followLater(retryMs);
  }
}, 1000);

function followLater(ms) {
  clearTimeout(retryTimer);
  retryTimer = setTimeout(follow, ms);
}

// A newer server has other scripts. Servers of two versions behind one address must not reload the page without end.
function reloadSeldom() {
  if (Date.now() - (history.state?.reloadedAt ?? 0) < RELOAD_PAUSE_MS) return;
  history.replaceState({ reloadedAt: Date.now() }, "");
  location.reload();
}

function follow() {
  const turn = ++turns;
  clearTimeout(retryTimer);
  stream?.close();
  stream = null;
  if (document.hidden) {
    place.leave();
    return;
  }
  if (!("EventSource" in window) || Date.now() < pollUntil || !place.take()) { // old browsers, and pages of a browser with many others
    poll(turn).catch((error) => away(error, turn)).finally(() => { if (turn === turns) followLater(POLL_MS); });
    return;
  }
  streamedAt = Date.now();
  isHeard = false;
  stream = new EventSource(location.href);
  stream.onopen = () => { heardAt = Date.now(); };
  stream.addEventListener("here", () => { heardAt = Date.now(); });
  stream.addEventListener("hello", (event) => {
    const hello = JSON.parse(event.data);
    clockOffsetUs = hello.now_us - Date.now() * 1000;
    retryMs = 1000;
    beatMs = hello.beat_s * 1000;
    isHeard = true;
    heardAt = Date.now();
    if (hello.version !== body.dataset.version) reloadSeldom();
    isBack();
    showTimes();
  });
  stream.addEventListener("block", (event) => {
    heardAt = Date.now();
    const block = JSON.parse(event.data);
    replaceBlock(block.name, block.html);
  });
  stream.onerror = () => {
    if (stream.readyState === EventSource.CONNECTING) { // the browser tries again by itself
      isHeard = false;
      streamedAt = Date.now();
      isAway("The server does not answer.");
      return;
    }
    stream.close();
    poll(turn).catch((error) => away(error, turn)).finally(() => {
      if (turn !== turns) return;
      followLater(retryMs);
      retryMs = Math.min(retryMs * 2, 15000);
    });
  };
}

// --- keys ---

const PLACES = { o: "/", j: "/jobs", e: "/executions", c: "/clusters", p: "/plan", r: "/rules", l: "/pools" };
let isGoing = false;
let rowAt = -1;
let rowKey = null; // the address of the marked row: it keeps its mark when other rows come and go

const keyOf = (row) => row.querySelector("[data-open]")?.getAttribute("href") ?? "";
const markedAt = (rows) => rows.findIndex((row) => keyOf(row) === rowKey);

function move(step) {
  const rows = [...document.querySelectorAll("[data-row]")];
  if (!rows.length) return;
  const marked = markedAt(rows);
  rowAt = Math.min(Math.max((marked >= 0 ? marked : rowAt) + step, 0), rows.length - 1);
  rowKey = keyOf(rows[rowAt]);
  markRow(rows);
  rows[rowAt].querySelector("[data-open]")?.focus();
  rows[rowAt].scrollIntoView({ block: "nearest" });
}

function markRow(rows = [...document.querySelectorAll("[data-row]")]) {
  const marked = markedAt(rows);
  rows.forEach((row, at) => row.classList.toggle("at", at === marked));
}

document.addEventListener("yard:block", () => markRow());
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input:not([type=checkbox]), select, textarea, dialog");
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (isTyping) {
    if (event.key === "Escape" && !event.target.closest("dialog")) event.target.blur();
    return;
  }
  if (isGoing) {
    isGoing = false;
    if (PLACES[event.key]) location.assign(PLACES[event.key]);
  } else if (event.key === "/") {
    document.querySelector("[data-search]")?.focus();
  } else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "x") document.querySelector("[data-row].at [data-pick]")?.click();
  else if (event.key === "g") isGoing = true;
  else if (event.key === "?") document.querySelector("[data-help-dialog]")?.showModal();
  else return;
  event.preventDefault();
});

document.querySelector("[data-help]")?.addEventListener("click", () => document.querySelector("[data-help-dialog]").showModal());

// --- search: an id opens the job ---

document.querySelector(".search")?.addEventListener("submit", (event) => {
  const text = event.target.elements.text.value.trim();
  if (/^[0-9A-Za-z]{26}$/.test(text)) {
    event.preventDefault();
    location.assign(`/jobs/${text}`);
  }
});

// --- filters: the address has only what was filled in ---

document.querySelector("[data-filters]")?.addEventListener("submit", (event) => {
  for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
});
addEventListener("pageshow", (event) => {
  for (const field of document.querySelectorAll("[data-filters] :disabled")) field.disabled = false;
  // Back and Forward: the browser fills in what was chosen later, but the address holds the view.
  const isReturn = event.persisted || performance.getEntriesByType("navigation")[0]?.type === "back_forward";
  if (isReturn) for (const form of document.querySelectorAll("[data-filters], .search")) form.reset();
});

// --- the plan follows the form as it is filled in ---

const planForm = document.querySelector("[data-plan]");
let planTimer = 0;
let isPlanOld = false; // the form has changed since the plan that is shown

function markPlan() {
  for (const button of document.querySelectorAll("[data-submit]")) button.disabled = isPlanOld;
}

function showPlan() {
  clearTimeout(planTimer);
  planTimer = 0;
  waiting.delete("result");
  const charsMax = Number(planForm.dataset.charsMax);
  if (planForm.elements.command.value.length > charsMax) {
    turns += 1; // what is on its way is a plan of another command
    clearTimeout(retryTimer);
    stream?.close();
    stream = null;
    document.getElementById("result").textContent = `This page plans commands of up to ${charsMax} characters. For a longer one use yard submit --plan, or put the command into a script.`;
    return;
  }
  const query = new URLSearchParams([...new FormData(planForm)].filter(([, value]) => value.trim()));
  history.replaceState(history.state, "", query.size ? `/plan?${query}` : "/plan");
  follow(); // the first blocks of the stream are the new plan
}

planForm?.addEventListener("input", () => {
  clearTimeout(planTimer);
  planTimer = setTimeout(showPlan, 250);
  isPlanOld = true;
  markPlan();
});
planForm?.addEventListener("submit", (event) => {
  event.preventDefault();
  showPlan();
});

document.addEventListener("yard:block", (event) => {
  if (!planForm || event.detail.name !== "result") return;
  if (!planTimer) isPlanOld = false; // else the form has changed again: this is the plan before
  markPlan();
});

// --- theme ---

document.querySelector("[data-theme-switch]")?.addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  document.cookie = `yard_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=lax`;
});

showTimes();
setInterval(showTimes, 1000);
if ("live" in body.dataset) follow();
document.addEventListener("visibilitychange", () => {
  if (!("live" in body.dataset)) return;
  if (document.hidden) setLive(false, "paused");
  follow(); // closes the stream of a hidden page; the first blocks of a new one are what changed since
});
// Somebody has just changed something here: the first blocks of a new stream show it.
document.addEventListener("yard:changed", () => { if ("live" in body.dataset) follow(); });
addEventListener("pagehide", () => stream?.close());
addEventListener("pageshow", (event) => { if (event.persisted && "live" in body.dataset) follow(); });
