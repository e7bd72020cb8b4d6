// What a person does on a page: act on jobs and clusters after seeing what that touches. All of it goes through the same
// API as `yard`, with the rights of the session. Foreign text is only ever put into text nodes.

import { visible } from "./text.js";

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
    const detail = visible(result.detail || `The server answers ${answer.status}.`);
    const error = new Error([detail, visible(result.next_step || "")].filter(Boolean).join(" "));
    throw Object.assign(error, { status: answer.status, detail, retryAfterS: Number(answer.headers.get("retry-after")) });
  }
  return result;
}

export function make(tag, text, properties = {}) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = visible(text);
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
  dialog.querySelector("[data-confirm-title]").textContent = visible(title);
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

// Enter in a field presses the button, as in a form.
dialog.addEventListener("keydown", (event) => {
  const doIt = dialog.querySelector("[data-confirm-do]");
  if (event.key !== "Enter" || event.isComposing || !event.target.matches("input") || doIt.hidden) return;
  event.preventDefault();
  doIt.click();
});

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
