// Actions on all jobs that match the view, also on those of other pages. The server says first which jobs an action
// would touch; the action then names exactly these jobs, so that a job that begins to match later is left alone.

import { ACTS, ask, call, fieldOf, make } from "./actions.js";

const PIECE = { retry: 100 }; // jobs in one request; of a retry each job is a submit
const PIECE_MAX = 500;
const BUSY_TRIES = 30; // the server says how long to wait before each
const SHOWN_MAX = 10;
const NOT_A_FILTER = ["cursor", "offset", "sort", "group", "key"];
const dialog = document.querySelector("[data-confirm]");
const bar = document.querySelector("[data-selection]");
const count = (number) => number.toLocaleString("en").replaceAll(",", "\u202f"); // as the server writes numbers
const jobs = (number) => (number === 1 ? "1 job" : `${count(number)} jobs`);

// --- the offer, once all jobs of a page are selected ---

const words = bar.querySelector("[data-all-words]");
const offer = bar.querySelector("[data-select-matching]");

function showOffer() {
  const table = document.querySelector("#rows table[data-matching]");
  const boxes = [...document.querySelectorAll("[data-pick]")];
  const matching = table?.dataset.matching ?? "";
  words.hidden = !("all" in bar.dataset);
  words.textContent = `All ${matching ? `${matching} ` : ""}jobs that match this view are selected.`;
  bar.querySelector("[data-picked-words]").hidden = "all" in bar.dataset;
  const isPageSelected = boxes.every((box) => box.checked);
  const isPhone = !table?.tHead.offsetHeight; // it shows no box for all jobs of the page
  offer.hidden = "all" in bar.dataset || !table || !("more" in table.dataset) || !(isPageSelected || isPhone);
  offer.textContent = `Select all ${matching ? `${matching} ` : ""}jobs that match`;
}

offer.addEventListener("click", () => {
  bar.dataset.all = "";
  document.dispatchEvent(new Event("yard:picked"));
  bar.querySelector("[data-select-none]").focus();
});
document.addEventListener("yard:picked", showOffer);

// --- which jobs an action would touch ---

function add(total, part) {
  total.ids.push(...(part.ids ?? []));
  total.first.push(...(part.first ?? []).slice(0, Math.max(0, SHOWN_MAX - total.first.length)));
  for (const group of part.counts ?? []) {
    for (const name of ["state", "owner", "project"]) total[name].set(group[name], (total[name].get(group[name]) ?? 0) + group.jobs);
  }
  for (const { reason, jobs: size } of part.refused ?? []) total.refused.set(reason, (total.refused.get(reason) ?? 0) + size);
}

async function select(name, onRound, signal) {
  const total = { ids: [], first: [], state: new Map(), owner: new Map(), project: new Map(), refused: new Map() };
  const query = new URLSearchParams([...new URLSearchParams(location.search)].filter(([key, value]) => value && !NOT_A_FILTER.includes(key)));
  query.set("action", name);
  for (;;) {
    const part = await whenFree(() => call("GET", `/job-actions?${query}`, undefined, { signal }), signal);
    add(total, part);
    if (!part.next) return total;
    query.set("cursor", part.next);
    onRound(total);
  }
}

function facts(total) {
  const list = make("dl", undefined, { className: "facts" });
  for (const name of ["state", "owner", "project"]) {
    const groups = [...total[name]].sort((one, other) => other[1] - one[1]);
    const shown = groups.slice(0, SHOWN_MAX).map(([value, size]) => `${name === "state" ? value.toLowerCase() : value} ${count(size)}`);
    if (groups.length > SHOWN_MAX) shown.push(`${count(groups.length - SHOWN_MAX)} more`);
    const row = make("div");
    row.append(make("dt", `by ${name}`), make("dd", shown.join(", ")));
    list.append(row);
  }
  return list;
}

function summary(total, field) {
  const parts = [facts(total), make("p", total.ids.length > total.first.length ? "The newest of them:" : "These are:")];
  const list = make("ul", undefined, { className: "touch" });
  list.append(...total.first.map((job) => make("li", `${job.name.trim() || job.id} · ${job.state.toLowerCase()} · ${job.owner}`)));
  if (total.ids.length > total.first.length) list.append(make("li", `and ${count(total.ids.length - total.first.length)} more`));
  parts.push(list, make("p", "Jobs that begin to match from now on are left alone.", { className: "quiet" }));
  if (field) parts.push(field.label);
  return parts;
}

const refusals = (total) => [...total.refused].slice(0, SHOWN_MAX).map(
  ([reason, size]) => make("p", `${jobs(size)} that match ${size === 1 ? "is" : "are"} left alone. ${reason}`, { className: "problem" }));

async function preview(name) {
  const verb = ACTS[name].verb;
  const asked = new AbortController();
  const progress = make("p", "", { role: "status" });
  const leave = () => asked.abort();
  dialog.addEventListener("close", leave, { once: true });
  try {
    const total = await select(name, (sofar) => {
      progress.textContent = `Looking which jobs this touches: ${jobs(sofar.ids.length)} so far.`;
      if (!dialog.open) ask({ title: `${verb} all jobs that match?`, parts: [progress], button: "" });
    }, asked.signal);
    if (asked.signal.aborted) return;
    if (!total.ids.length) {
      ask({ title: `${verb} jobs?`, parts: [make("p", NOTHING[name]), ...refusals(total)], button: "" });
      return;
    }
    const field = fieldOf(ACTS[name]);
    const size = jobs(total.ids.length);
    ask({
      title: `${verb} ${size}?`,
      parts: [...summary(total, field), ...refusals(total), progress],
      button: `${verb} ${size}`,
      act: runner(name, total, field, progress),
    });
    progress.textContent = "";
  } catch (error) {
    if (asked.signal.aborted) return;
    const problem = error instanceof TypeError ? "The server does not answer. Nothing was changed." : error.message;
    ask({ title: `${verb} jobs?`, parts: [make("p", problem, { className: "problem" })], button: "" });
  } finally {
    dialog.removeEventListener("close", leave);
  }
}

const NOTHING = {
  cancel: "No job that matches can be cancelled: all have ended, or are being cancelled.",
  hold: "No job that matches can be held: all have ended, are held, or are on a cluster.",
  release: "No job that matches is held.",
  priority: "All jobs that match have ended.",
  retry: "No job that matches can be retried: only jobs that have ended, and that were not retried in this way before.",
};

// --- the action, piece by piece ---

// Waits as long as the server asks for, if it has too much to do.
async function whenFree(request, signal) {
  for (let tries = 1; ; tries++) {
    try {
      return await request();
    } catch (error) {
      if (!error.retryAfterS || tries >= BUSY_TRIES || signal?.aborted) throw error;
      await new Promise((resolve) => { setTimeout(resolve, error.retryAfterS * 1000); });
    }
  }
}

// What the button does. After a failure, a second press goes on with the jobs that are left.
function runner(name, total, field, progress) {
  const left = [...total.ids];
  const done = { changed: 0, unchanged: 0, refused: [] };
  return async () => {
    const body = { action: name, ...field?.read() };
    const stop = dialog.querySelector("[value=no]");
    const words = stop.textContent;
    stop.textContent = "Stop";
    try {
      while (left.length && dialog.open) {
        const piece = left.slice(0, PIECE[name] ?? PIECE_MAX);
        const answer = await whenFree(() => call("POST", "/job-actions", { ...body, jobs: piece }), { get aborted() { return !dialog.open; } });
        left.splice(0, piece.length);
        done.changed += answer.changed ?? 0;
        done.unchanged += answer.unchanged ?? 0;
        done.refused.push(...(answer.refused ?? []));
        progress.textContent = `${count(total.ids.length - left.length)} of ${jobs(total.ids.length)} done.`;
      }
    } finally {
      stop.textContent = words;
    }
    return finish(name, done, left);
  };
}

function finish(name, done, left) {
  delete bar.dataset.all;
  document.dispatchEvent(new Event("yard:unpick"));
  if (!done.unchanged && !done.refused.length && !left.length) return true;
  const parts = [];
  if (done.unchanged) parts.push(make("p", `${jobs(done.unchanged)} needed no change: somebody else was faster, or the job went on.`));
  if (left.length) parts.push(make("p", `You stopped before ${jobs(left.length)}. They are as they were.`));
  if (done.refused.length) {
    const list = make("ul", undefined, { className: "touch" });
    const reasons = new Map(); // reason → the jobs; some reasons name their job
    for (const job of done.refused) {
      if (!reasons.has(job.reason)) reasons.set(job.reason, []);
      reasons.get(job.reason).push(job.id);
    }
    const shown = [...reasons].slice(0, SHOWN_MAX);
    list.append(...shown.map(([reason, ids]) => make("li", ids.length > 1 ? `${jobs(ids.length)}: ${reason}` : reason.includes(ids[0]) ? reason : `${ids[0]}: ${reason}`)));
    const named = shown.reduce((sum, [, ids]) => sum + ids.length, 0);
    if (done.refused.length > named) list.append(make("li", `and ${count(done.refused.length - named)} more`));
    parts.push(make("p", `${jobs(done.refused.length)} ${done.refused.length === 1 ? "was" : "were"} refused:`, { className: "problem" }), list);
  }
  ask({ title: `${ACTS[name].done}: ${jobs(done.changed)}`, parts, button: "" });
  document.dispatchEvent(new Event("yard:changed"));
  return false;
}

document.addEventListener("yard:act-on-all", async (event) => {
  const buttons = [...bar.querySelectorAll("[data-act]")];
  for (const button of buttons) button.disabled = true;
  await preview(event.detail);
  for (const button of buttons) button.disabled = false;
});
