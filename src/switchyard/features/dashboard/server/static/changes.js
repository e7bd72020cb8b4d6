// Changes of rules, pools and queues, with a diff before they are saved; their history; and what ends an execution or
// runs it again. A change is saved only if nobody else changed the value since the page showed it.

import { ask, call, make, newKey } from "./actions.js";
import { visibleJson } from "./text.js";

const DIFF_LINES_MAX = 2000; // of both sides; larger values are shown whole, without a comparison
const OUTDATED = 412; // the status of a write whose condition does not hold
const button = () => document.querySelector("[data-confirm-do]");
const pretty = (value) => (value === undefined ? "" : visibleJson(JSON.stringify(sorted(value), undefined, 2)));

// Keys in one order: only a change of a value is a change.
function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.keys(value).sort().map((key) => [key, sorted(value[key])]));
}

// Lines of both texts in order, each with "+", "-" or " ": the longest common sequence stays.
export function diffLines(before, after) {
  const old = before ? before.split("\n") : [];
  const fresh = after ? after.split("\n") : [];
  if (old.length + fresh.length > DIFF_LINES_MAX) return [...old.map((line) => ["-", line]), ...fresh.map((line) => ["+", line])];
  const lengths = Array.from({ length: old.length + 1 }, () => new Uint16Array(fresh.length + 1));
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = fresh.length - 1; j >= 0; j--) {
      lengths[i][j] = old[i] === fresh[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const lines = [];
  for (let i = 0, j = 0; i < old.length || j < fresh.length;) {
    if (i < old.length && j < fresh.length && old[i] === fresh[j]) { lines.push([" ", old[i++]]); j++; }
    else if (j >= fresh.length || (i < old.length && lengths[i + 1][j] >= lengths[i][j + 1])) lines.push(["-", old[i++]]);
    else lines.push(["+", fresh[j++]]);
  }
  return lines;
}

const TAGS = { "+": "ins", "-": "del", " ": "span" };

function showDiff(box, before, after) {
  const lines = diffLines(pretty(before), pretty(after));
  const changed = lines.filter(([sign]) => sign !== " ").length;
  box.replaceChildren(...lines.map(([sign, line]) => make(TAGS[sign], `${sign === "-" ? "−" : sign} ${line}\n`)));
  if (!changed) box.replaceChildren(make("span", "Nothing changes.\n"));
  box.hidden = false;
  return changed > 0;
}

function diffBox() {
  return make("pre", undefined, { className: "command diff", hidden: true, tabIndex: 0, ariaLabel: "What changes" });
}

const condition = (etag) => (etag ? { "if-match": `"${etag}"` } : { "if-none-match": "*" });

// Writes if the value is still the one that the page showed. The API's advice for a conflict is for programs.
async function write(method, path, value, etag) {
  try {
    await call(method, path, value, { headers: condition(etag) });
  } catch (error) {
    if (error.status !== OUTDATED) throw error;
    document.dispatchEvent(new Event("yard:changed"));
    throw new Error(`Nothing was saved. ${error.detail} Leave this dialog, and press the button again: it then has the value of now.`);
  }
}

// --- edit a value: write, look at the diff, save ---

function edit({ edit: path, title, check, etag, value, draft }) {
  const before = value ? JSON.parse(value) : undefined;
  const field = make("textarea", value ? pretty(before) : pretty(JSON.parse(draft || "{}")), { rows: 12, spellcheck: false, className: "mono" });
  const label = make("label", "The value, as JSON", { className: "stack" });
  label.append(field);
  const box = diffBox();
  let checked; // the value that the diff shows; saved as it is
  field.addEventListener("input", () => {
    checked = undefined;
    box.hidden = true;
    button().textContent = "Show the changes";
  });
  ask({
    title: `${value ? "Change" : "Set"}: ${title}`,
    parts: [label, box],
    button: "Show the changes",
    act: async () => {
      if (checked !== undefined) {
        await write("PUT", path, checked, etag);
        return true;
      }
      const wanted = parse(field.value);
      const stored = check ? await call("POST", check, wanted) : wanted;
      if (showDiff(box, before, stored)) {
        checked = stored;
        button().textContent = "Save these changes";
      }
      box.scrollIntoView({ block: "nearest" });
      return false;
    },
  });
  field.focus();
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}.`);
  }
}

// --- remove a value ---

function remove({ remove: path, title, etag, value, effect }) {
  const box = diffBox();
  showDiff(box, JSON.parse(value), undefined);
  ask({
    title: `Remove: ${title}?`,
    parts: [make("p", effect), box],
    button: "Remove it",
    act: () => write("DELETE", path, undefined, etag),
  });
}

// --- who changed a value ---

async function history({ history: path, title }) {
  const list = make("div", "Reading …");
  ask({ title: `History: ${title}`, parts: [list], button: "" });
  try {
    const page = await call("GET", path);
    const parts = page.items.flatMap((entry) => {
      const box = diffBox();
      showDiff(box, entry.before ?? undefined, entry.after ?? undefined);
      return [make("p", `${new Date(entry.at_us / 1000).toLocaleString()} · ${entry.actor}`), box];
    });
    list.replaceChildren(...(parts.length ? parts : [make("p", "Nobody has changed it.")]));
    if (page.next) list.append(make("p", "There are older changes: yard history shows them.", { className: "quiet" }));
  } catch (error) {
    list.replaceChildren(make("p", error.message, { className: "problem" }));
  }
}

// --- add a pool, a label or a queue ---

function add({ add: path, title, draft }) {
  const name = make("input", undefined, { type: "text", required: true, maxLength: 128 });
  const label = make("label", "Name ", { className: "stack" });
  label.append(name);
  ask({
    title,
    parts: [label],
    button: "Next",
    act: () => {
      if (!name.value.trim()) throw new Error("Give it a name.");
      edit({ edit: `${path}/${encodeURIComponent(name.value.trim())}`, title: name.value.trim(), check: "", etag: "", value: "", draft });
      return false;
    },
  });
}

// --- executions ---

const execution = () => document.querySelector("[data-execution]").dataset;

function again(word) {
  const { execution: name, project, domain } = execution();
  const text = word === "recover"
    ? `This starts a new execution. Nodes of ${name} that succeeded are not run again; the others are.`
    : `This starts a new execution with the inputs of ${name}. All nodes run again.`;
  const made = { project, domain, name: `a${newKey().slice(0, 19)}` }; // the same name: the same execution
  ask({
    title: word === "recover" ? `Recover ${name}?` : `Run ${name} again?`,
    parts: [make("p", text)],
    button: word === "recover" ? "Recover" : "Run again",
    act: async () => {
      await call("POST", "/executions", { ...made, [word]: name });
      location.assign(`/executions/${made.project}/${made.domain}/${made.name}`);
    },
  });
}

function terminate() {
  const { execution: name, project, domain } = execution();
  const cause = make("input", undefined, { type: "text", maxLength: 200 });
  const label = make("label", "Cause (optional) ", { className: "stack" });
  label.append(cause);
  ask({
    title: `Terminate ${name}?`,
    parts: [make("p", "Its jobs are cancelled, and no other node begins."), label],
    button: "Terminate",
    act: () => call("POST", `/executions/${project}/${domain}/${name}/terminate`, { cause: cause.value }),
  });
}

const DEEDS = { edit, remove, history, add };

document.addEventListener("click", (event) => {
  for (const [name, deed] of Object.entries(DEEDS)) {
    const pressed = event.target.closest(`[data-${name}]`);
    if (pressed) deed(pressed.dataset);
  }
  const run = event.target.closest("[data-again]");
  if (run) again(run.dataset.again);
  if (event.target.closest("[data-terminate]")) terminate();
});
