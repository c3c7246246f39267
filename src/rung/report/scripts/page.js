// What the other scripts share: the record, numbers as people read them, elements, the tip beside the pointer, files to save.
"use strict";
const rung = (() => {
  const held = document.getElementById("record");
  const record = held ? JSON.parse(held.textContent) : null;
  document.documentElement.classList.add("js");

  const scaled = (value, steps, digits) => {
    let [unit, size] = steps[0];
    for (const [name, scale] of steps) if (Math.abs(value) >= scale * 0.9995) [unit, size] = [name, scale];
    return `${Number((value / size).toPrecision(digits))} ${unit}`.trim();
  };
  const TIMES = [["ns", 1], ["µs", 1e3], ["ms", 1e6], ["s", 1e9]];
  const SIZES = [["B", 1], ["KiB", 2 ** 10], ["MiB", 2 ** 20], ["GiB", 2 ** 30], ["TiB", 2 ** 40]];
  const duration = (ns, digits = 3) => scaled(ns, TIMES, digits);
  const amount = (value, unit) => (unit === "bytes" ? scaled(value, SIZES, 3) : `${Number(value.toPrecision(3))} ${value === 1 && unit.length > 1 ? unit.replace(/s$/, "") : unit}`);
  const percent = (share) => `${Number((share * 100).toPrecision(3))}%`;
  const count = (number) => number.toLocaleString("en");

  // An element with its properties; texts become text, whatever is in them.
  const element = (tag, properties = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name in made) made[name] = value;
      else made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  };

  const box = document.getElementById("tip");
  const tip = {
    show(x, y, text) {
      box.textContent = text;
      box.hidden = false;
      const { width, height } = box.getBoundingClientRect();
      box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 4))}px`;
      box.style.top = `${y + 18 + height < innerHeight ? y + 18 : Math.max(4, y - height - 12)}px`;
    },
    hide() {
      box.hidden = true;
    },
  };

  // The titles of pictures, which browsers show late: in our tip at once.
  for (const title of document.querySelectorAll("svg title")) {
    const owner = title.parentElement;
    owner.dataset.tip = title.textContent;
    title.remove();
  }
  document.addEventListener("pointermove", (event) => {
    const owner = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    if (owner) tip.show(event.clientX, event.clientY, owner.dataset.tip);
    else if (!(event.target instanceof HTMLCanvasElement)) tip.hide();
  });

  const save = (name, text, type) => {
    const url = URL.createObjectURL(new Blob([text], { type }));
    element("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };

  return { record, duration, amount, percent, count, element, tip, save };
})();
