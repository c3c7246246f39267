// A canvas as wide as its box that shows a part of a taller picture: the box scrolls, the canvas stays and is drawn anew.
"use strict";
rung.dark = matchMedia("(prefers-color-scheme: dark)");

rung.Canvas = class {
  // draw(context, width, height, top): called once a frame where something changed; top: how far the box is scrolled.
  constructor(label, draw) {
    this.draw = draw;
    this.height = 0; // of the whole picture
    this.canvas = rung.element("canvas", { role: "img", "aria-label": label });
    this.spacer = rung.element("div");
    this.box = rung.element("div", { className: "canvas", tabIndex: 0, role: "group", "aria-label": label }, this.canvas, this.spacer);
    this.context = this.canvas.getContext("2d");
    this.box.addEventListener("scroll", () => this.changed());
    this.canvas.addEventListener("pointerleave", () => rung.tip.hide());
    rung.dark.addEventListener("change", () => this.changed());
  }

  attach(parent) {
    parent.append(this.box);
    new ResizeObserver(() => this.changed()).observe(this.box);
    return this;
  }

  get width() {
    return this.box.clientWidth;
  }

  changed() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.paint();
    });
  }

  paint() {
    const sharp = devicePixelRatio || 1;
    const width = this.width;
    const height = Math.min(this.height, Math.round(innerHeight * 0.72) - 2);
    if (!width || !height) return;
    if (this.canvas.width !== Math.round(width * sharp) || this.canvas.height !== Math.round(height * sharp)) {
      this.canvas.width = Math.round(width * sharp);
      this.canvas.height = Math.round(height * sharp);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    this.spacer.style.height = `${this.height - height}px`;
    this.context.setTransform(sharp, 0, 0, sharp, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.context.font = "12px system-ui, sans-serif";
    this.context.textBaseline = "middle";
    this.draw(this.context, width, height, this.box.scrollTop);
  }

  // The place of the pointer in the whole picture.
  at(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top + this.box.scrollTop };
  }
};

// Colours of the page's style, read anew where the scheme changes. Text on a colour is black or white, whichever stands out more.
rung.palette = (() => {
  let known = null;
  rung.dark.addEventListener("change", () => (known = null));
  const luminance = (fill) => {
    const [r, g, b] = fill.match(/[\d.]+/g).map((part) => part / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const read = () => {
    const probe = rung.element("i");
    document.body.append(probe);
    const classes = rung.record.parts.map((part) => {
      probe.className = `p-${part}`;
      const fill = getComputedStyle(probe).backgroundColor;
      const light = luminance(fill) + 0.05;
      return { fill, dim: fill.replace("rgb(", "rgba(").replace(")", ", 0.16)"), text: 1.05 / light > light / 0.058 ? "#fff" : "#14171a" };
    });
    probe.remove();
    const style = getComputedStyle(document.documentElement);
    const named = Object.fromEntries(["ink", "soft", "rule", "card", "line"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    return { classes, ...named };
  };
  return () => (known ??= read());
})();
