// How many connections the pages of one browser keep open. Over HTTP/1.1 a browser opens six connections to a server,
// for all of its windows. A stream keeps one of them, and so does a wait for output. All pages together keep four; a
// page that gets no place asks every few seconds instead, and the other connections stay free for clicks.

const PLACES = 4;
const KEY = "yard_places";
const HOLD_MS = 15000; // a page that does not renew its place for so long is closed, frozen or has crashed
const RENEW_MS = 5000;
const isUnlimited = /^h[23]/.test(performance.getEntriesByType("navigation")[0]?.nextHopProtocol ?? "");
const taken = new Set();

// The places of all pages: id → the time until which it is held.
function readPlaces() {
  const now = Date.now();
  let places;
  try {
    places = JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch { // not ours, or the browser keeps nothing
    return {};
  }
  return Object.fromEntries(Object.entries(places).filter(([, until]) => until > now && until <= now + HOLD_MS));
}

function writePlaces(places) {
  try {
    localStorage.setItem(KEY, JSON.stringify(places));
  } catch { /* the browser keeps nothing: each page counts for itself */ }
}

export class Place {
  constructor() {
    this.id = [...crypto.getRandomValues(new Uint32Array(2))].join("-");
  }

  isHeld() {
    return isUnlimited || taken.has(this);
  }

  // Whether this page may keep one more connection open. Takes the place, or renews it.
  take() {
    if (isUnlimited) return true;
    const places = readPlaces();
    if (!(this.id in places) && Object.keys(places).length >= PLACES) {
      taken.delete(this);
      return false;
    }
    writePlaces({ ...places, [this.id]: Date.now() + HOLD_MS });
    taken.add(this);
    return true;
  }

  leave() {
    if (!taken.delete(this)) return;
    const { [this.id]: _, ...others } = readPlaces();
    writePlaces(others);
  }
}

setInterval(() => { for (const place of [...taken]) place.take(); }, RENEW_MS);
addEventListener("pagehide", () => { for (const place of [...taken]) place.leave(); });
