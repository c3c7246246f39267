// Icicles: a rectangle a node, as wide as its time, below what it is part of. A click zooms into one.
"use strict";
rung.Icicle = class {
  static ROW = 21;

  constructor(box, record) {
    this.box = box;
    this.record = record;
    this.canvas = new rung.Canvas("GPU time from the top down. Escape zooms out.", (...given) => this.draw(...given));
    const bar = rung.element("div", { className: "bar" });
    this.tabs = record.trees.map((tree, k) => {
      const tab = rung.element("button", { type: "button", "aria-pressed": "false" }, tree.title);
      tab.addEventListener("click", () => this.choose(k));
      return tab;
    });
    this.search = rung.element("input", { type: "search", placeholder: "Search a name", "aria-label": "Search the icicle" });
    this.found = rung.element("span", { "aria-live": "polite" });
    this.search.addEventListener("input", () => this.look());
    const still = () => box.parentElement.querySelectorAll(".still > svg")[record.trees.indexOf(this.tree)];
    bar.append(...this.tabs, this.search, rung.pictures.ofCanvas("icicle", this.canvas.canvas, still), this.found);
    box.append(bar);
    this.choose(0);
    this.canvas.attach(box);
    this.listen();
  }

  choose(k) {
    this.tabs.forEach((tab, other) => tab.setAttribute("aria-pressed", String(other === k)));
    const { name, parent, time } = (this.tree = this.record.trees[k]);
    this.left = [];
    this.depth = [];
    const filled = []; // how far the children of each node reach
    for (let i = 0; i < name.length; i++) {
      this.left[i] = parent[i] < 0 ? 0 : filled[parent[i]];
      this.depth[i] = parent[i] < 0 ? 0 : this.depth[parent[i]] + 1;
      if (parent[i] >= 0) filled[parent[i]] += time[i];
      filled[i] = this.left[i];
    }
    this.canvas.height = (this.depth.reduce((a, b) => Math.max(a, b), 0) + 1) * rung.Icicle.ROW + 2;
    this.enter(0);
    this.look();
  }

  enter(node) {
    this.node = node;
    this.above = new Set();
    for (let up = this.tree.parent[node]; up >= 0; up = this.tree.parent[up]) this.above.add(up);
    this.box.dataset.node = this.record.names[this.tree.name[node]];
    this.canvas.changed();
  }

  look() {
    const text = this.search.value.trim().toLowerCase();
    this.matches = null;
    this.found.textContent = "";
    if (text) {
      this.matches = this.tree.name.map((name) => this.record.names[name].toLowerCase().includes(text));
      // Of nodes within each other, the outer one has the time.
      const covered = [];
      let time = 0;
      this.matches.forEach((match, i) => {
        const up = this.tree.parent[i];
        covered[i] = match || (up >= 0 && covered[up]);
        if (match && !(up >= 0 && covered[up])) time += this.tree.time[i];
      });
      this.found.textContent = time ? `${rung.percent(time / this.tree.time[0])} of GPU time` : "Nothing found.";
    }
    this.canvas.changed();
  }

  // [left, width] of a node in pixels; what is above the one that was entered is as wide as all.
  place(i, width) {
    if (this.above.has(i)) return [0, width];
    const scale = width / this.tree.time[this.node];
    return [(this.left[i] - this.left[this.node]) * scale, this.tree.time[i] * scale];
  }

  draw(context, width, height, top) {
    const palette = rung.palette();
    const { ROW } = rung.Icicle;
    const { name, category } = this.tree;
    for (let i = 0; i < name.length; i++) {
      const y = this.depth[i] * ROW - top;
      const [x, wide] = this.place(i, width);
      if (y + ROW < 0 || y > height || x + wide <= 0.3 || x >= width || wide < 0.3) continue;
      const begin = Math.max(0, x);
      const shown = Math.min(width, x + wide) - begin;
      const colours = palette.classes[category[i]];
      const dim = this.matches && !this.matches[i];
      context.fillStyle = dim ? colours.dim : colours.fill;
      context.fillRect(begin, y, Math.max(0.5, shown - (shown > 3 ? 1 : 0)), ROW - 1);
      if (shown > 30) {
        const text = this.record.short[name[i]] || this.record.names[name[i]];
        const room = Math.floor((shown - 8) / 6.9);
        context.fillStyle = dim ? palette.ink : colours.text;
        context.fillText(text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text, begin + 4, y + ROW / 2);
      }
    }
  }

  hit({ x, y }) {
    const depth = Math.floor(y / rung.Icicle.ROW);
    return this.depth.findIndex((own, i) => {
      if (own !== depth) return false;
      const [left, wide] = this.place(i, this.canvas.width);
      return x >= left && x < left + wide;
    });
  }

  listen() {
    const { canvas, box } = this.canvas;
    canvas.style.cursor = "pointer";
    canvas.addEventListener("click", (event) => {
      const i = this.hit(this.canvas.at(event));
      if (i >= 0) this.enter(i);
    });
    canvas.addEventListener("pointermove", (event) => {
      const i = this.hit(this.canvas.at(event));
      if (i < 0) return rung.tip.hide();
      const { name, time, count, category, parent } = this.tree;
      const steps = Number(this.box.dataset.steps);
      const shares = [`${rung.percent(time[i] / time[0])} of all`];
      if (parent[i] > 0) shares.push(`${rung.percent(time[i] / time[parent[i]])} of what is above`);
      const lines = [this.record.names[name[i]], `${rung.duration(time[i] / steps)}, ${shares.join(", ")}`, `${rung.count(Number((count[i] / steps).toPrecision(3)))} GPU events`, this.record.categories[category[i]]];
      rung.tip.show(event.clientX, event.clientY, lines.filter(Boolean).join("\n"));
    });
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.tree.parent[this.node] >= 0) this.enter(this.tree.parent[this.node]);
    });
  }
};

for (const box of document.querySelectorAll('[data-picture="icicle"]')) {
  box.hidden = false;
  new rung.Icicle(box, rung.record);
}
