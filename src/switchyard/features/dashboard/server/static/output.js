// The output of a job as it is written: with the colours of a terminal, followed, searched and downloaded. Foreign text is
// only ever put into text nodes.

import { call, make } from "./actions.js";
import { Place } from "./connections.js";
import { visible } from "./text.js";

const WAIT_S = 20; // one request waits for more output
const PAUSE_MS = 3000; // between two requests that do not wait
const AFTER_ALL = 2 ** 52; // an offset behind any output: the answer has the size and the attempt alone
const ATTEMPTS_MAX = 10; // that are linked
const LINES_MAX = 5000; // kept in the page; the download has all
const NEAR_END_PX = 4; // browsers round scroll positions
const LINE_CHARS_MAX = 20000; // a longer line is shown in pieces
const SGR = /\x1b\[([0-9;:]*)m/g;
// Every other escape sequence, also one whose end is not written yet, and control characters but tab: they have no look
// here. In this order: CSI; OSC and other strings up to their end; character sets and the like, such as ESC ( B; ESC 7.
const OTHER = /\x1b(?:\[[0-?]*[ -/]*(?:[@-~]|$)|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]+(?:[0-~]|$)|[0-~])|[\x00-\x08\x0b-\x1f]/g;
const ENDS = { 22: ["a1", "a2"], 23: ["a3"], 24: ["a4"], 27: ["a7"], 29: ["a9"] }; // code → the styles that it ends

const attemptOf = (output) => output.attempt ?? 1; // the API leaves out 1
const bytesWords = (bytes) => (bytes === 1 ? "1 byte" : `${bytes.toLocaleString("en")} bytes`);
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
    this.following = root.querySelector("[data-follow]");
    this.following.addEventListener("change", () => this.showEnd());
    root.querySelector("[data-wrap]").addEventListener("change", (event) => {
      this.text.classList.toggle("wrap", event.target.checked);
      this.showEnd();
    });
    this.text.classList.add("wrap");
    root.querySelector("[data-find]").addEventListener("input", (event) => {
      this.find(event.target.value);
      this.text.querySelector("mark")?.scrollIntoView({ block: "nearest" });
    });
    root.querySelector("[data-download]").addEventListener("click", () => this.download());
    this.top = 0;
    this.text.addEventListener("scroll", () => this.leaveEnd(), { passive: true });
    addEventListener("pagehide", () => { this.isOver = true; });
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden) return;
      this.waiting?.abort();
      this.place.leave();
    });
  }

  address(offset, waitS, others = {}) {
    const { job, stream, task, attempt } = { ...this.root.dataset, ...others };
    const query = new URLSearchParams({ stream, offset, wait_s: waitS });
    if (task !== undefined) query.set("task", task);
    if (attempt !== undefined) query.set("attempt", attempt);
    return `/jobs/${job}/output?${query}`;
  }

  async follow() {
    const isChosen = this.root.dataset.attempt !== undefined; // one attempt, not the newest
    let attempt = 0;
    if (isChosen) call("GET", this.address(AFTER_ALL, 0, { attempt: undefined })).then((newest) => this.showAttempts(attemptOf(newest))).catch(() => {});
    while (!this.isOver) {
      let output;
      await whenVisible();
      const isFirst = attempt === 0; // answered at once: the page says how it stands
      const waitS = this.place.take() && !isFirst ? WAIT_S : 0;
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
      const isNew = !isFirst && attemptOf(output) !== attempt;
      attempt = attemptOf(output);
      if (isNew) { // a new attempt begins at its first byte
        this.note(`attempt ${attempt}`);
        this.offset = 0;
        continue;
      }
      if (!isChosen) this.showAttempts(attempt);
      this.add(output);
      if (output.is_last || (isChosen && output.is_over)) break;
      if (this.text.firstChild) this.state.textContent = "following";
      else await this.sayEmpty("Nothing has been written yet.");
      if (output.is_over) await pause(1000);
      else if (!waitS && !isFirst && !output.chunks?.length) await pause(PAUSE_MS);
    }
    this.place.leave();
    this.flush(true);
    if (this.text.firstChild) this.state.textContent = `This is all: ${bytesWords(this.offset)}.`;
    else await this.sayEmpty("It wrote nothing here.");
    this.root.dataset.done = "yes";
  }

  // The other stream may have what the reader looks for: a program that fails often writes to stderr alone.
  async sayEmpty(words) {
    const tab = document.querySelector("[data-other-stream]");
    const stream = tab.dataset.otherStream;
    const other = await call("GET", this.address(AFTER_ALL, 0, { stream })).catch(() => ({}));
    if (!other.size) {
      this.state.textContent = words;
      return;
    }
    this.state.replaceChildren(`${words} `, make("a", `${stream} has ${bytesWords(other.size)}.`, { href: tab.href }));
  }

  // Links to the attempts, if there are several; the newest is shown unless the address names one.
  showAttempts(newest) {
    const nav = document.querySelector("[data-attempts]");
    if (newest < 2 || nav.dataset.newest === String(newest)) return;
    nav.dataset.newest = newest;
    const shown = Number(this.root.dataset.attempt ?? newest);
    const links = [];
    for (let number = Math.max(1, newest - ATTEMPTS_MAX + 1); number <= newest; number++) {
      const address = new URL(location.href);
      address.hash = "output-title";
      if (number < newest) address.searchParams.set("attempt", number);
      else address.searchParams.delete("attempt");
      const link = make("a", number, { href: address, ariaLabel: `attempt ${number}` });
      if (number === shown) link.setAttribute("aria-current", "true");
      links.push(link);
    }
    nav.replaceChildren(make("span", newest > ATTEMPTS_MAX ? "newest attempts" : "attempt", { className: "quiet" }), ...links);
    nav.hidden = false;
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
    this.showEnd();
  }

  showEnd() {
    if (this.following.checked) this.text.scrollTop = this.text.scrollHeight;
  }

  // Who scrolls up, by wheel, finger or key, reads there: new lines must not throw them to the end.
  leaveEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this.text;
    if (scrollTop < this.top && scrollHeight - scrollTop - clientHeight > NEAR_END_PX) this.following.checked = false;
    this.top = scrollTop;
  }

  line(raw) {
    const row = make("span");
    const text = raw.includes("\r") ? raw.replace(/\r+$/, "").split("\r").at(-1) : raw; // a progress bar's last state
    let at = 0;
    const put = (piece) => {
      const clean = piece.replace(OTHER, "");
      if (clean) row.append(this.style.size ? make("span", clean, { className: [...this.style].join(" ") }) : visible(clean));
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
    const parts = codes.split(";");
    const drop = (letter) => { for (const name of [...this.style]) if (name[0] === letter) this.style.delete(name); };
    for (let at = 0; at < parts.length; at++) {
      const [code, detail] = parts[at].split(":").map(Number); // 4:3 is a wave below the text, 38:5:200 one of 256 colours
      if (code === 0) this.style.clear();
      else if (code === 4 && detail === 0) this.style.delete("a4");
      else if ([1, 2, 3, 4, 7, 9].includes(code)) this.style.add(`a${code}`);
      else if (ENDS[code]) for (const name of ENDS[code]) this.style.delete(name);
      else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) { drop("f"); this.style.add(`f${code % 10}`); }
      else if ((code >= 40 && code <= 47) || (code >= 100 && code <= 107)) { drop("g"); this.style.add(`g${code % 10}`); }
      else if (code === 39) drop("f");
      else if (code === 49) drop("g");
      else if ([38, 48, 58].includes(code) && detail === undefined) at += parts[at + 1] === "5" ? 2 : 4; // of 256 or more colours none is drawn
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
