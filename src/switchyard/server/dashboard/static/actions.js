// What a person does on a page: act on jobs and clusters after seeing what that touches, and read output. All of it goes
// through the same API as `yard`, with the rights of the session. Foreign text is only ever put into text nodes.

import { Place } from "./connections.js";

const dialog = document.querySelector("[data-confirm]");
const SHOWN_MAX = 20; // jobs that are named before an action

export async function call(method, path, payload, { headers = {}, ...options } = {}) {
  const answer = await fetch(`/session/v1${path}`, {
    method,
    headers: { "x-yard-page": "1", ...(payload === undefined ? {} : { "content-type": "application/json" }), ...headers },
    body: payload === undefined ? undefined : JSON.stringify(payload),
    ...options,
  });
  const result = await answer.json().catch(() => ({}));
  if (answer.status === 401) location.assign(`/sign-in?next=${encodeURIComponent(location.pathname + location.search)}`);
  if (!answer.ok) {
    const error = new Error([result.detail || `The server answers ${answer.status}.`, result.next_step].filter(Boolean).join(" "));
    throw Object.assign(error, { retryAfterS: Number(answer.headers.get("retry-after")) });
  }
  return result;
}

export function make(tag, text, properties = {}) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  return Object.assign(element, properties);
}

// One key for one dialog: a second click after a lost answer finds what the first one made.
export function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// --- a question before a deed ---

export function ask({ title, parts, button, act }) {
  const problem = dialog.querySelector("[data-confirm-problem]");
  const doIt = dialog.querySelector("[data-confirm-do]");
  dialog.querySelector("[data-confirm-title]").textContent = title;
  dialog.querySelector("[data-confirm-text]").replaceChildren(...parts);
  doIt.hidden = !button;
  problem.hidden = true;
  doIt.textContent = button || "";
  doIt.disabled = false;
  doIt.onclick = async () => {
    doIt.disabled = true;
    problem.hidden = true;
    try {
      if ((await act()) !== false) {
        dialog.close();
        document.dispatchEvent(new Event("yard:changed"));
      }
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error instanceof TypeError ? "The server does not answer. Nothing may have happened; look, then try again." : error.message;
    }
    doIt.disabled = false;
  };
  dialog.showModal();
}

// --- jobs ---

const picked = new Map(); // id → name, state, owner

function listed(jobs) {
  const list = make("ul", undefined, { className: "touch" });
  for (const job of jobs.slice(0, SHOWN_MAX)) list.append(make("li", `${job.name} · ${job.state.toLowerCase()} · ${job.owner}`));
  if (jobs.length > SHOWN_MAX) list.append(make("li", `and ${jobs.length - SHOWN_MAX} more`));
  return list;
}

const FINAL = ["SUCCEEDED", "FAILED", "CANCELLED", "REJECTED"];
const isFinal = (job) => FINAL.includes(job.state);
export const ACTS = {
  cancel: { verb: "Cancel", done: "Cancelled", fits: (job) => !isFinal(job), does: (job, values) => call("POST", `/jobs/${job.id}/cancel`, values), field: "Reason (optional)" },
  hold: { verb: "Hold", done: "Held", fits: (job) => !isFinal(job), does: (job) => call("PATCH", `/jobs/${job.id}`, { hold: true }) },
  release: { verb: "Release", done: "Released", fits: (job) => !isFinal(job), does: (job) => call("PATCH", `/jobs/${job.id}`, { hold: false }) },
  retry: { verb: "Retry", done: "Retried", fits: isFinal, does: (job, values, key) => call("POST", `/jobs/${job.id}/retry`, {}, { headers: { "idempotency-key": key } }) },
  priority: { verb: "Change the priority of", done: "Changed", fits: (job) => !isFinal(job), does: (job, values) => call("PATCH", `/jobs/${job.id}`, values), field: "New priority", kind: "number" },
};

// What an action asks for besides the jobs; null: nothing.
export function fieldOf(act) {
  if (!act.field) return null;
  const input = make("input", undefined, { type: act.kind || "text", maxLength: 200, value: act.kind ? "0" : "" });
  const label = make("label", `${act.field} `, { className: "stack" });
  label.append(input);
  const read = () => {
    if (act.kind !== "number") return { reason: input.value };
    if (!input.value.trim()) throw new Error("Enter a number.");
    return { priority: Number(input.value) };
  };
  return { label, read };
}

function actOn(name, jobs) {
  const act = ACTS[name];
  const touched = jobs.filter(act.fits);
  const left = jobs.length - touched.length;
  const undone = new Map(touched.map((job) => [job, newKey()])); // each with the key that makes a second try harmless
  const shown = make("div");
  const nameUndone = () => shown.replaceChildren(make("p", `This touches ${undone.size === 1 ? "this job" : `these ${undone.size} jobs`}:`), listed([...undone.keys()]));
  const parts = [];
  if (!touched.length) parts.push(make("p", name === "retry" ? "Only jobs that have ended can be retried." : "All of these jobs have ended."));
  else parts.push(shown);
  nameUndone();
  if (touched.length && left) parts.push(make("p", `${left} of the ${jobs.length} selected ${left === 1 ? "is" : "are"} left alone.`, { className: "quiet" }));
  const field = touched.length ? fieldOf(act) : null;
  if (field) parts.push(field.label);
  const plural = () => (undone.size === 1 ? "the job" : `${undone.size} jobs`);
  ask({
    title: `${act.verb} ${touched.length ? plural() : "jobs"}?`,
    parts,
    button: touched.length ? `${act.verb} ${plural()}` : "",
    act: async () => {
      const values = field?.read();
      const failures = [];
      let last = null;
      for (const [job, key] of [...undone]) {
        try {
          last = await act.does(job, values, key);
          undone.delete(job);
          picked.delete(job.id);
        } catch (error) {
          if (error instanceof TypeError) {
            failures.unshift("The server does not answer. Try again: no job is touched twice.");
            break;
          }
          failures.push(`${job.name}: ${error.message}`);
        }
      }
      showPicked();
      if (undone.size) { // the dialog goes on with these
        const done = touched.length - undone.size;
        nameUndone();
        dialog.querySelector("[data-confirm-title]").textContent = `${act.verb} ${plural()}?`;
        dialog.querySelector("[data-confirm-do]").textContent = `${act.verb} ${plural()}`;
        if (done) failures.unshift(`${act.done}: ${done} of ${touched.length} jobs.`);
        document.dispatchEvent(new Event("yard:changed"));
        throw new Error(failures.slice(0, 4).join(" ") + (failures.length > 4 ? ` And ${failures.length - 4} more.` : ""));
      }
      if (name === "retry" && touched.length === 1 && last?.id) location.assign(`/jobs/${last.id}`);
    },
  });
}

function showPicked() {
  const bar = document.querySelector("[data-selection]");
  if (!bar) return;
  const isAll = "all" in bar.dataset; // all jobs that match the view (matching.js)
  bar.hidden = picked.size === 0 && !isAll;
  bar.querySelector("[data-selected-count]").textContent = picked.size;
  for (const box of document.querySelectorAll("[data-pick]")) {
    box.checked = isAll || picked.has(box.value);
    if (picked.has(box.value)) picked.set(box.value, read(box)); // the state may have changed
  }
  const all = document.querySelector("[data-pick-all]");
  if (all) all.checked = [...document.querySelectorAll("[data-pick]")].every((box) => box.checked);
  document.dispatchEvent(new Event("yard:picked"));
}

function unpick() {
  picked.clear();
  delete document.querySelector("[data-selection]")?.dataset.all;
  showPicked();
}

const read = (box) => ({ id: box.value, name: box.dataset.name, state: box.dataset.state, owner: box.dataset.owner });

document.addEventListener("change", (event) => {
  const isAll = event.target.matches("[data-pick-all]");
  if (!isAll && !event.target.matches("[data-pick]")) return;
  const bar = document.querySelector("[data-selection]");
  if ("all" in bar.dataset) { // the jobs of this page stay selected, but for the one that was changed
    delete bar.dataset.all;
    for (const box of document.querySelectorAll("[data-pick]")) picked.set(box.value, read(box));
  }
  for (const box of isAll ? document.querySelectorAll("[data-pick]") : [event.target]) {
    if (event.target.checked) picked.set(box.value, read(box));
    else picked.delete(box.value);
  }
  showPicked();
});
document.addEventListener("yard:block", showPicked);
document.addEventListener("yard:unpick", unpick);
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-act]");
  if (button) {
    const one = document.querySelector("[data-one]");
    if (!one && "all" in document.querySelector("[data-selection]").dataset) {
      document.dispatchEvent(new CustomEvent("yard:act-on-all", { detail: button.dataset.act }));
      return;
    }
    const jobs = one ? [{ id: one.dataset.job, name: one.dataset.name, state: one.dataset.state, owner: one.dataset.owner }] : [...picked.values()];
    actOn(button.dataset.act, jobs);
  }
  if (event.target.closest("[data-select-none]")) unpick();
});

// --- clusters ---

document.addEventListener("click", (event) => {
  const cordon = event.target.closest("[data-cordon]");
  if (cordon) {
    const { cluster, held, queued } = cordon.parentElement.dataset;
    const isCordon = cordon.dataset.cordon === "true";
    const reason = make("input", undefined, { type: "text", maxLength: 200 });
    const label = make("label", "Reason (optional) ", { className: "stack" });
    label.append(reason);
    const effect = isCordon
      ? `No new job goes to ${cluster}. ${held} jobs that its agents have run on; ${queued} that wait for it wait, or go elsewhere.`
      : `${cluster} takes jobs again. ${queued} jobs wait for it.`;
    ask({
      title: `${isCordon ? "Cordon" : "Uncordon"} ${cluster}?`,
      parts: [make("p", effect), ...(isCordon ? [label] : [])],
      button: isCordon ? "Cordon" : "Uncordon",
      act: () => call("PATCH", `/clusters/${encodeURIComponent(cluster)}`, { is_cordoned: isCordon, reason: reason.value }),
    });
  }
  const invite = event.target.closest("[data-invite]");
  if (invite) {
    const name = make("input", undefined, { type: "text", value: invite.dataset.invite || "", required: true });
    const label = make("label", "Name of the cluster ", { className: "stack" });
    label.append(name);
    ask({
      title: "Invite an agent",
      parts: [make("p", "This makes a join token for one agent. It is shown once, and holds for a day."), label],
      button: "Make the token",
      act: async () => {
        const made = await call("POST", `/clusters/${encodeURIComponent(name.value)}/invites`, {});
        const command = `yard agent --server ${location.origin} --cluster ${made.info.cluster} --backend local --token ${made.token}`;
        ask({
          title: `Run this beside ${made.info.cluster}`,
          parts: [make("pre", command, { className: "command" }), make("p", "Choose the backend that the cluster has: local, slurm or kubernetes.", { className: "quiet" })],
          button: "",
        });
        return false;
      },
    });
  }
});

// --- submit what was planned ---

// What the job asks for besides its command, in one line.
function asked(body) {
  const { spec, ...places } = body;
  const fields = { ...spec.resources, image: spec.image, ...places };
  return Object.entries(fields).filter(([, value]) => value && typeof value !== "object").map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`).join(" · ");
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-submit]");
  if (!button) return;
  const body = JSON.parse(button.dataset.submit);
  const key = newKey();
  ask({
    title: "Submit this job?",
    parts: [make("pre", body.spec.command.join(" "), { className: "command" }), make("p", asked(body))],
    button: "Submit",
    act: async () => {
      const made = await call("POST", "/jobs", body, { headers: { "idempotency-key": key } });
      location.assign(`/jobs/${made.id}`);
    },
  });
});

// --- the map of tasks: a click opens the first task of a square ---

document.addEventListener("click", (event) => {
  const map = event.target.closest(".taskmap");
  if (!map) return;
  const box = map.viewBox.baseVal;
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
  if (point.x < 0 || point.y < 0 || point.x > box.width || point.y > box.height) return;
  const cell = Math.floor(point.y / 10) * Number(map.dataset.columns) + Math.floor(point.x / 10);
  const first = map.dataset.firsts?.split(" ")[cell];
  if (first !== undefined) location.assign(`${location.pathname}?task=${first}#output-title`);
});

// --- output ---

const WAIT_S = 20; // one request waits for more output
const PAUSE_MS = 3000; // between two requests that do not wait
const LINES_MAX = 5000; // kept in the page; the download has all
const LINE_CHARS_MAX = 20000; // a longer line is shown in pieces
const SGR = /\x1b\[([0-9;]*)m/g;
// Every other escape sequence, and control characters but tab: they have no look here.
const OTHER = /\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]/g;

const gapWords = (bytes) => `${bytes.toLocaleString("en")} bytes were too many to keep`;

const pause = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

// Resolves when a person sees the page: a hidden one leaves its connections to the others.
function whenVisible() {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}

class OutputView {
  constructor(root) {
    this.root = root;
    this.text = root.querySelector("[data-text]");
    this.state = root.querySelector("[data-output-state]");
    this.offset = 0;
    this.decoder = new TextDecoder();
    this.place = new Place();
    this.partial = ""; // the last line, not ended yet
    this.style = new Set();
    this.lines = 0;
    this.dropped = 0;
    this.query = "";
    root.querySelector("[data-wrap]").addEventListener("change", (event) => this.text.classList.toggle("wrap", event.target.checked));
    this.text.classList.add("wrap");
    root.querySelector("[data-find]").addEventListener("input", (event) => this.find(event.target.value));
    root.querySelector("[data-download]").addEventListener("click", () => this.download());
    this.text.addEventListener("wheel", (event) => { if (event.deltaY < 0) root.querySelector("[data-follow]").checked = false; }, { passive: true });
    addEventListener("pagehide", () => { this.isOver = true; });
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) return;
      this.waiting?.abort();
      this.place.leave();
    });
  }

  address(offset, waitS) {
    const query = new URLSearchParams({ stream: this.root.dataset.stream, offset, wait_s: waitS });
    if (this.root.dataset.task !== undefined) query.set("task", this.root.dataset.task);
    return `/jobs/${this.root.dataset.job}/output?${query}`;
  }

  async follow() {
    let attempt = 0;
    while (!this.isOver) {
      let output;
      await whenVisible();
      const waitS = this.place.take() ? WAIT_S : 0;
      this.waiting = new AbortController();
      try {
        output = await call("GET", this.address(this.offset, waitS), undefined, { signal: this.waiting.signal });
        if (this.waiting.signal.aborted) continue; // perhaps in the middle of the answer
      } catch (error) {
        if (this.waiting.signal.aborted) continue;
        this.state.textContent = error instanceof TypeError ? "The server does not answer; trying again." : error.message;
        await pause(2000);
        continue;
      }
      if (attempt && output.attempt !== attempt) { // a new attempt begins at its first byte
        this.note(`attempt ${output.attempt}`);
        this.offset = 0;
        attempt = output.attempt;
        continue;
      }
      attempt = output.attempt;
      this.add(output);
      if (output.is_last) break;
      this.state.textContent = this.text.firstChild ? "following" : "Nothing has been written yet.";
      if (output.is_over) await pause(1000);
      else if (!waitS && !output.chunks?.length) await pause(PAUSE_MS);
    }
    this.place.leave();
    this.flush(true);
    this.state.textContent = this.text.firstChild ? `This is all: ${this.offset.toLocaleString("en")} bytes.` : "It wrote nothing here.";
    this.root.dataset.done = "yes";
  }

  add(output) {
    for (const chunk of output.chunks ?? []) {
      if (chunk.offset > this.offset) this.note(gapWords(chunk.offset - this.offset));
      const bytes = Uint8Array.from(atob(chunk.data), (char) => char.charCodeAt(0));
      this.offset = chunk.offset + bytes.length;
      this.partial += this.decoder.decode(bytes, { stream: true });
    }
    this.flush(false);
  }

  flush(isEnd) {
    this.tail?.remove();
    this.tail = null;
    const lines = this.partial.split("\n");
    this.partial = isEnd ? "" : lines.pop();
    if (isEnd && lines.at(-1) === "") lines.pop();
    while (this.partial.length > LINE_CHARS_MAX) {
      lines.push(this.partial.slice(0, LINE_CHARS_MAX));
      this.partial = this.partial.slice(LINE_CHARS_MAX);
    }
    const skipped = Math.max(0, lines.length - LINES_MAX);
    const fragment = document.createDocumentFragment();
    for (const line of lines.slice(skipped)) {
      for (let at = 0; at === 0 || at < line.length; at += LINE_CHARS_MAX) fragment.append(this.line(line.slice(at, at + LINE_CHARS_MAX)));
    }
    if (this.partial) { // shown as far as it is written, and drawn again when it goes on
      const style = new Set(this.style);
      this.tail = this.line(this.partial);
      this.style = style;
      fragment.append(this.tail);
    }
    this.text.append(fragment);
    this.dropped += skipped;
    while (this.text.childElementCount > LINES_MAX) {
      this.text.firstElementChild.remove();
      this.dropped += 1;
    }
    if (this.dropped) this.root.dataset.dropped = this.dropped;
    if (this.query) this.find(this.query);
    if (this.root.querySelector("[data-follow]").checked) this.text.scrollTop = this.text.scrollHeight;
  }

  line(raw) {
    const row = make("span");
    const text = raw.includes("\r") ? raw.replace(/\r+$/, "").split("\r").at(-1) : raw; // a progress bar's last state
    let at = 0;
    const put = (piece) => {
      const clean = piece.replace(OTHER, "");
      if (clean) row.append(this.style.size ? make("span", clean, { className: [...this.style].join(" ") }) : clean);
    };
    for (const match of text.matchAll(SGR)) {
      put(text.slice(at, match.index));
      this.setStyle(match[1]);
      at = match.index + match[0].length;
    }
    put(text.slice(at));
    row.append("\n");
    return row;
  }

  setStyle(codes) {
    const numbers = codes.split(";").map(Number);
    const drop = (letter) => { for (const name of [...this.style]) if (name[0] === letter) this.style.delete(name); };
    for (let at = 0; at < numbers.length; at++) {
      const code = numbers[at];
      if (code === 0) this.style.clear();
      else if ([1, 2, 3, 4, 7, 9].includes(code)) this.style.add(`a${code}`);
      else if (code >= 22 && code <= 29) { drop("a"); }
      else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) { drop("f"); this.style.add(`f${code % 10}`); }
      else if ((code >= 40 && code <= 47) || (code >= 100 && code <= 107)) { drop("g"); this.style.add(`g${code % 10}`); }
      else if (code === 39) drop("f");
      else if (code === 49) drop("g");
      else if (code === 38 || code === 48) at += numbers[at + 1] === 5 ? 2 : 4; // of 256 or more colours none is drawn
    }
  }

  note(words) {
    this.flush(false);
    this.text.append(make("span", `— ${words} —\n`, { className: "gap" }));
  }

  find(query) {
    this.query = query;
    for (const mark of this.text.querySelectorAll("mark")) mark.replaceWith(...mark.childNodes);
    const found = this.root.querySelector("[data-found]");
    if (!query) { found.textContent = ""; return; }
    this.text.normalize();
    // Not by toLowerCase: it makes some letters longer, and a place in its text is no place in the node.
    const wanted = new RegExp(query.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&"), "iu");
    const walker = document.createTreeWalker(this.text, NodeFilter.SHOW_TEXT);
    const nodes = [];
    while (walker.nextNode()) nodes.push(walker.currentNode);
    let count = 0;
    for (let node of nodes) {
      let match = wanted.exec(node.data);
      while (match && count < 1000) {
        const hit = node.splitText(match.index);
        node = hit.splitText(match[0].length);
        const mark = make("mark");
        hit.replaceWith(mark);
        mark.append(hit);
        count += 1;
        match = wanted.exec(node.data);
      }
    }
    found.textContent = count === 1 ? "1 hit" : `${count}${count === 1000 ? "+" : ""} hits`;
    this.text.querySelector("mark")?.scrollIntoView({ block: "nearest" });
  }

  async download() {
    const parts = [];
    let offset = 0;
    let end = 0; // of the last piece
    try {
      for (;;) {
        const output = await call("GET", this.address(offset, 0));
        for (const chunk of output.chunks ?? []) {
          const bytes = Uint8Array.from(atob(chunk.data), (char) => char.charCodeAt(0));
          if (chunk.offset > end) parts.push(`\n— ${gapWords(chunk.offset - end)} —\n`);
          parts.push(bytes);
          end = chunk.offset + bytes.length;
        }
        if (!output.chunks?.length || output.next === offset) break;
        offset = output.next;
      }
    } catch (error) {
      this.state.textContent = error.message;
      return;
    }
    const link = make("a", undefined, { href: URL.createObjectURL(new Blob(parts)), download: `${this.root.dataset.job}.${this.root.dataset.stream}.txt` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
}

const output = document.querySelector("[data-output]");
if (output) new OutputView(output).follow();
