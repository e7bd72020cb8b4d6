// Foreign text as a page shows it.

// Characters that would reorder or hide the text around them, as model/rules/names.py lists them.
const HIDDEN = /[\x7f-\x9f\u2028\u2029\u00ad\u034f\u061c\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

// Foreign text with a mark in place of each such character.
export const visible = (text) => String(text).replace(HIDDEN, "\ufffd");

// JSON that shows them by their numbers, and means the same.
export const visibleJson = (json) => json.replace(HIDDEN, (char) => [...Array(char.length).keys()].map((at) => `\\u${char.charCodeAt(at).toString(16).padStart(4, "0")}`).join(""));
