
"use strict";
// A line of words: Tab reaches one of them; the arrow keys, Home and End move to the others.
function reachable(text, words) {
  const reach = (chosen) => {
    for (const word of words) word.tabIndex = word === chosen ? 0 : -1;
  };
  reach(words[0]);
  text.addEventListener("focusin", (event) => {
    if (words.includes(event.target)) reach(event.target);
  });
  text.addEventListener("keydown", (event) => {
    const place = words.indexOf(event.target);
    if (place < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const onward = getComputedStyle(text).direction === "rtl" ? -1 : 1;
    const next = {
      ArrowRight: place + onward,
      ArrowLeft: place - onward,
      Home: 0,
      End: words.length - 1,
    }[event.key];
    if (next === undefined || !words[next]) return;
    event.preventDefault();
    words[next].focus();
  });
}

// First-strong isolates keep a right-to-left word from changing the order of the numbers around it.
function isolated(word) {
  return `\u2068${word.textContent}\u2069`;
}

// Add a line of text below an element, which screen readers read when it changes.
function lineBelow(element) {
  const line = document.createElement("p");
  line.className = "seen";
  line.setAttribute("aria-live", "polite");
  element.after(line);
  return line;
}
