// The timeline: lanes of slices and curves over time, to zoom, pan, search and sum.
"use strict";
rung.Timeline = class {
  static ROW = 18;
  static TITLE = 18;
  static GROUP = 26;
  static CURVE = 40;
  static AXIS = 22;
  static SIDES = { gpu: "GPU", collectives: "collectives", idle: "idle", host: "host" }; // in the order of sums

  constructor(box, record) {
    this.box = box;
    this.record = record;
    this.span = Math.max(1, record.span);
    this.from = 0;
    this.to = this.span;
    this.matches = null; // for each kind, whether it is searched for
    this.chosen = null; // [from, to] that is summed
    this.lay();
    this.canvas = new rung.Canvas("Timeline. Arrow keys move, + and − zoom, 0 shows all.", (...given) => this.draw(...given));
    this.canvas.height = this.height;
    this.controls();
    this.canvas.attach(box);
    this.sums = rung.element("div", { className: "sums", "aria-live": "polite" });
    box.append(this.sums);
    this.listen();
  }

  // Where everything is, from the top down.
  lay() {
    const { ROW, TITLE, GROUP, CURVE, AXIS } = rung.Timeline;
    this.items = [];
    let y = AXIS;
    const put = (height, item) => {
      this.items.push({ y, height, ...item });
      y += height;
    };
    for (const group of this.record.groups) {
      if (group.title) put(GROUP, { title: group.title, strong: true });
      if (group.note) put(TITLE, { title: group.note });
      for (const lane of group.lanes) {
        put(TITLE, { title: lane.title });
        for (const row of lane.rows) put(ROW, { row: this.decoded(row), side: lane.side, lane: lane.title, group: group.title });
      }
      for (const curve of group.curves) {
        put(TITLE, { title: `${curve.title}, at most ${rung.amount(Math.max(...curve.value, 0), curve.unit)}` });
        put(CURVE, { curve });
      }
    }
    this.height = y + 8;
  }

  decoded({ gap, dur, kind, together }) {
    const size = dur.length;
    const row = { size, start: new Float64Array(size), end: new Float64Array(size), reach: new Float64Array(size), kind, many: new Map() };
    let at = 0;
    let reach = -Infinity;
    for (let i = 0; i < size; i++) {
      row.start[i] = at + gap[i];
      row.end[i] = at = row.start[i] + dur[i];
      row.reach[i] = reach = Math.max(reach, at);
    }
    for (const [i, events, busy] of together) row.many.set(i, { events, busy });
    return row;
  }

  // The first slice that ends behind a time.
  first(row, time) {
    let low = 0;
    let high = row.size;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.reach[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  name(kind) {
    return this.record.names[this.record.kinds.name[kind]];
  }

  short(kind) {
    return this.record.short[this.record.kinds.name[kind]] || this.name(kind);
  }

  // ---- what is seen ----

  draw(context, width, height, top) {
    const { AXIS } = rung.Timeline;
    const palette = rung.palette();
    const scale = width / (this.to - this.from);
    const ticks = this.ticks(scale);
    context.fillStyle = palette.rule;
    for (const { x } of ticks) context.fillRect(x, 0, 1, height);
    for (const item of this.items) {
      const y = item.y - top;
      if (y + item.height < AXIS || y > height) continue;
      if (item.row) this.drawRow(context, palette, item.row, y, item.height - 2, width, scale);
      else if (item.curve) this.drawCurve(context, palette, item.curve, y, item.height - 4, width, scale);
      else {
        context.fillStyle = item.strong ? palette.ink : palette.soft;
        context.font = item.strong ? "600 13px system-ui, sans-serif" : "12px system-ui, sans-serif";
        context.fillText(this.fitted(context, item.title, width - 12), 6, y + item.height / 2 + 1);
      }
    }
    this.drawAxis(context, palette, width, ticks);
    if (this.chosen) {
      const [a, b] = this.chosen.map((time) => (time - this.from) * scale);
      context.globalAlpha = 0.22;
      context.fillStyle = palette.line;
      context.fillRect(Math.min(a, b), 0, Math.abs(b - a), height);
      context.globalAlpha = 1;
    }
    this.box.dataset.from = this.from;
    this.box.dataset.to = this.to;
    this.box.dataset.frames = Number(this.box.dataset.frames ?? 0) + 1;
  }

  // As much of a text as there is room for, with an ellipsis where it is cut.
  fitted(context, text, room) {
    let shown = text;
    while (shown.length > 1 && context.measureText(shown).width > room) shown = `${shown.slice(0, -2)}…`;
    return shown;
  }

  // Round times at least 90 pixels apart.
  ticks(scale) {
    const least = 90 / scale;
    const unit = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((m) => m * unit).find((ns) => ns >= least);
    const digits = Math.min(12, Math.max(3, Math.ceil(Math.log10(this.to / step)) + 1));
    const found = [];
    for (let time = Math.ceil(this.from / step) * step; time < this.to; time += step) {
      found.push({ x: (time - this.from) * scale, text: time ? rung.duration(time, digits) : "0" });
    }
    return found;
  }

  drawAxis(context, palette, width, ticks) {
    const { AXIS } = rung.Timeline;
    context.fillStyle = palette.card;
    context.fillRect(0, 0, width, AXIS);
    context.font = "11px system-ui, sans-serif";
    for (const { x, text } of ticks) {
      context.fillStyle = palette.rule;
      context.fillRect(x, 0, 1, AXIS);
      context.fillStyle = palette.soft;
      if (x + 4 + context.measureText(text).width <= width) context.fillText(text, x + 4, AXIS / 2);
    }
  }

  // Slices narrower than a pixel share it: it has the colour of the longest, and is as strong as they fill it. So gaps of a busy GPU do not
  // look as if it was idle.
  drawRow(context, palette, row, y, height, width, scale) {
    const { kinds } = this.record;
    const colour = (kind) => palette.classes[kinds.category[kind]][this.matches && !this.matches[kind] ? "dim" : "fill"];
    let pixel = -1, longest = 0, best = -1, covered = 0; // the pixel that is gathered
    let left = 0, right = 0, fill = null, strength = 1; // the run of pixels of one colour
    const flushRun = () => {
      if (fill !== null) {
        context.fillStyle = fill;
        context.globalAlpha = strength;
        context.fillRect(left, y, right - left, height);
        context.globalAlpha = 1;
        fill = null;
      }
    };
    const flushPixel = () => {
      if (pixel < 0) return;
      const own = colour(best);
      const strong = this.matches && this.matches[best] ? 1 : Math.ceil(8 * Math.min(1, covered)) / 8;
      if (fill !== own || strength !== strong || right !== pixel) {
        flushRun();
        left = pixel;
        fill = own;
        strength = strong;
      }
      right = pixel + 1;
      pixel = -1;
    };
    for (let i = this.first(row, this.from); i < row.size && row.start[i] < this.to; i++) {
      const x = (row.start[i] - this.from) * scale;
      const wide = (row.end[i] - row.start[i]) * scale;
      const kind = row.kind[i];
      if (wide < 1.5) {
        const own = Math.max(0, Math.floor(x));
        const found = this.matches && this.matches[kind] ? wide + 2 : wide; // what is searched for is not hidden by others
        if (own !== pixel) {
          flushPixel();
          [pixel, longest, best, covered] = [own, found, kind, 0];
        } else if (found > longest) [longest, best] = [found, kind];
        covered += wide;
        continue;
      }
      flushPixel();
      flushRun();
      const begin = Math.max(0, x);
      const end = Math.min(width, x + wide);
      const many = row.many.get(i);
      const shown = Math.max(1, end - begin - (wide > 4 ? 1 : 0));
      context.fillStyle = colour(kind);
      if (many) context.globalAlpha = 0.3 + 0.4 * Math.min(1, many.busy / (row.end[i] - row.start[i] || 1));
      context.fillRect(begin, y, shown, height);
      context.globalAlpha = 1;
      if (shown > 32) {
        const text = many ? `${many.events} events` : this.short(kind);
        context.font = "12px system-ui, sans-serif";
        context.fillStyle = many || (this.matches && !this.matches[kind]) ? palette.ink : palette.classes[kinds.category[kind]].text;
        const room = Math.floor((shown - 8) / 6.9);
        context.fillText(text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text, begin + 4, y + height / 2 + 1);
      }
    }
    flushPixel();
    flushRun();
  }

  drawCurve(context, palette, { ts, value }, y, height, width, scale) {
    const high = Math.max(...value, 0) || 1;
    const low = Math.min(...value, 0);
    const place = (v) => y + height * (1 - (v - low) / (high - low || 1));
    let i = 0;
    while (i + 1 < ts.length && ts[i + 1] <= this.from) i++;
    context.beginPath();
    context.moveTo(Math.max(0, (ts[i] - this.from) * scale), place(0));
    for (; i < ts.length && ts[i] < this.to; i++) {
      const next = i + 1 < ts.length ? ts[i + 1] : this.span;
      context.lineTo(Math.max(0, (ts[i] - this.from) * scale), place(value[i]));
      context.lineTo(Math.min(width, (next - this.from) * scale), place(value[i]));
    }
    context.lineTo(Math.min(width, (this.span - this.from) * scale), place(0));
    context.globalAlpha = 0.45;
    context.fillStyle = palette.line;
    context.fill();
    context.globalAlpha = 1;
  }

  // ---- what is done ----

  show(from, to) {
    const wide = Math.min(this.span, Math.max(20, to - from));
    this.from = Math.min(Math.max(0, from), this.span - wide);
    this.to = this.from + wide;
    this.canvas.changed();
  }

  zoom(factor, time = (this.from + this.to) / 2) {
    this.show(time - (time - this.from) * factor, time + (this.to - time) * factor);
  }

  move(share) {
    const by = (this.to - this.from) * share;
    this.show(this.from + by, this.to + by);
  }

  time(x) {
    return this.from + ((this.to - this.from) * x) / this.canvas.width;
  }

  controls() {
    const button = (label, title, act) => {
      const made = rung.element("button", { type: "button", title, "aria-label": title }, label);
      made.addEventListener("click", act);
      return made;
    };
    this.search = rung.element("input", { type: "search", placeholder: "Search a name", "aria-label": "Search the timeline" });
    this.found = rung.element("span", { "aria-live": "polite" });
    this.search.addEventListener("input", () => this.look());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.next();
    });
    this.box.append(
      rung.element(
        "div",
        { className: "bar" },
        this.search,
        button("+", "Zoom in", () => this.zoom(0.5)),
        button("−", "Zoom out", () => this.zoom(2)),
        button("All", "Show all", () => this.show(0, this.span)),
        button("Sum what is shown", "Sum what is shown by name", () => this.sum(this.from, this.to)),
        rung.pictures.ofCanvas("timeline", this.canvas.canvas, () => this.box.parentElement.querySelector(".still svg")),
        this.found,
      ),
    );
  }

  look() {
    const text = this.search.value.trim().toLowerCase();
    const { names, details, kinds } = this.record;
    this.matches = null;
    this.found.textContent = "";
    if (text) {
      const wanted = (texts) => texts.map((one) => one.toLowerCase().includes(text));
      const [byName, byDetail] = [wanted(names), wanted(details)];
      this.matches = kinds.name.map((name, kind) => byName[name] || byDetail[kinds.detail[kind]]);
      const sides = this.totals();
      if (!sides.length) this.matches = null;
      const said = sides.map(({ side, events, time }) => `${rung.Timeline.SIDES[side]}: ${rung.count(events)} found, ${rung.duration(time)}`);
      if (sides.some(({ side }) => side === "host")) said[said.length - 1] += " (calls within others counted once)";
      this.found.textContent = sides.length ? `${said.join("; ")}. Enter goes to the next.` : "Nothing found.";
    }
    this.canvas.changed();
  }

  // For each side how many events match, and how long they took: a call on the host within another that matches adds no time.
  totals() {
    const found = new Map();
    const lanes = new Map(); // the calls of a host lane
    for (const { row, side, group, lane } of this.items) {
      if (!row) continue;
      const total = found.get(side) ?? { side, events: 0, time: 0 };
      for (let i = 0; i < row.size; i++) {
        if (!this.matches[row.kind[i]]) continue;
        const { events, busy } = row.many.get(i) ?? { events: 1, busy: row.end[i] - row.start[i] };
        total.events += events;
        if (side === "host") {
          const key = `${group}\n${lane}`;
          if (!lanes.has(key)) lanes.set(key, []);
          lanes.get(key).push([row.start[i], row.start[i] + busy]);
        } else total.time += busy;
      }
      if (total.events) found.set(side, total);
    }
    for (const calls of lanes.values()) {
      let covered = -Infinity;
      for (const [start, end] of calls.sort((a, b) => a[0] - b[0])) {
        found.get("host").time += Math.max(0, end - Math.max(start, covered));
        covered = Math.max(covered, end);
      }
    }
    return Object.keys(rung.Timeline.SIDES).filter((side) => found.has(side)).map((side) => found.get(side));
  }

  // To the next slice that is searched for, behind the middle of what is shown.
  next() {
    if (!this.matches) return;
    const behind = this.last ?? -1;
    let best = null;
    for (const item of this.items) {
      const row = item.row;
      for (let i = 0; row && i < row.size; i++) {
        if (this.matches[row.kind[i]] && row.start[i] > behind && (!best || row.start[i] < best.start)) best = { item, start: row.start[i], end: row.end[i] };
      }
    }
    this.last = best ? best.start : -1;
    if (!best) return;
    const wide = Math.min(this.to - this.from, Math.max((best.end - best.start) * 8, this.span / 200));
    const middle = (best.start + best.end) / 2;
    rung.tip.hide(); // what was below the pointer has moved
    this.show(middle - wide / 2, middle + wide / 2);
    this.canvas.box.scrollTop = best.item.y - 120;
  }

  sum(a, b) {
    const [from, to] = [Math.max(0, Math.min(a, b)), Math.min(this.span, Math.max(a, b))];
    const sums = new Map();
    for (const { row, side } of this.items) {
      if (!row) continue;
      for (let i = this.first(row, from); i < row.size && row.start[i] < to; i++) {
        const part = Math.min(row.end[i], to) - Math.max(row.start[i], from);
        if (part < 0 || (part === 0 && row.end[i] > row.start[i])) continue;
        const many = row.many.get(i);
        const name = many ? "(short events drawn together)" : this.name(row.kind[i]);
        const key = `${side}\n${name}`;
        const known = sums.get(key) ?? { side, name, time: 0, events: 0 };
        known.time += many ? (part / (row.end[i] - row.start[i] || 1)) * many.busy : part;
        known.events += many ? many.events : 1;
        sums.set(key, known);
      }
    }
    this.chosen = [from, to];
    this.canvas.changed();
    const order = Object.keys(rung.Timeline.SIDES);
    this.showSums(from, to, [...sums.values()].sort((x, y) => order.indexOf(x.side) - order.indexOf(y.side) || y.time - x.time));
  }

  showSums(from, to, sums) {
    const { element } = rung;
    const cell = (text, raw) => element("td", raw === undefined ? {} : { className: "number", "data-v": String(raw) }, text);
    const rows = sums.slice(0, 200).map(({ side, name, time, events }) =>
      element("tr", {}, cell(rung.Timeline.SIDES[side]), cell(name), cell(rung.duration(time), Math.round(time)), cell(rung.percent(time / (to - from)), time / (to - from)), cell(rung.count(events), events)),
    );
    const heads = [["where"], ["name"], ["time", "number", "time_ns"], ["of the range", "number", "share"], ["events", "number", "events"]];
    const table = element("table", { className: "data", "data-table": "range" });
    table.append(
      element("thead", {}, element("tr", {}, ...heads.map(([text, className, name]) => element("th", { scope: "col", className: className ?? "", "data-name": name ?? text }, text)))),
      element("tbody", {}, ...rows),
    );
    const more = sums.length > 200 ? ` The first 200 of ${rung.count(sums.length)} names.` : "";
    const said = `${rung.duration(to - from)} from ${rung.duration(from, 6)} to ${rung.duration(to, 6)}. Sums are over all lanes; a call's time has those within it.${more}`;
    this.sums.replaceChildren(element("p", { className: "caption" }, said), element("div", { className: "wide" }, table));
    rung.enhance(table);
  }

  listen() {
    const { canvas, box } = this.canvas;
    let drag = null;
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (event.deltaX && Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move(event.deltaX / this.canvas.width);
        else if (event.deltaY > 0 && this.to - this.from >= this.span) return; // all is shown: the page scrolls on
        else this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY * 0.0016))), this.time(this.canvas.at(event).x));
        event.preventDefault();
      },
      { passive: false },
    );
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const { x } = this.canvas.at(event);
      drag = { x, y: event.clientY, top: box.scrollTop, from: this.from, to: this.to, sums: event.shiftKey, time: this.time(x) };
      canvas.setPointerCapture(event.pointerId);
      rung.tip.hide();
      box.focus({ preventScroll: true });
    });
    canvas.addEventListener("pointermove", (event) => {
      const at = this.canvas.at(event);
      if (!drag) return this.hover(event, at);
      if (drag.sums) {
        this.chosen = [drag.time, this.time(at.x)];
        this.canvas.changed();
        return;
      }
      const by = ((drag.x - at.x) / this.canvas.width) * (drag.to - drag.from);
      this.show(drag.from + by, drag.to + by);
      box.scrollTop = drag.top + drag.y - event.clientY;
    });
    const end = (event) => {
      if (drag?.sums && event.type === "pointerup") {
        const time = this.time(this.canvas.at(event).x);
        if (Math.abs(this.canvas.at(event).x - drag.x) > 2) this.sum(drag.time, time);
      }
      drag = null;
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("dblclick", (event) => {
      const hit = this.hit(this.canvas.at(event));
      if (hit) this.show(hit.row.start[hit.i] - (hit.row.end[hit.i] - hit.row.start[hit.i]) * 0.1, hit.row.end[hit.i] + (hit.row.end[hit.i] - hit.row.start[hit.i]) * 0.1);
    });
    box.addEventListener("keydown", (event) => {
      const acts = {
        ArrowLeft: () => this.move(-0.1),
        ArrowRight: () => this.move(0.1),
        "+": () => this.zoom(0.7),
        "=": () => this.zoom(0.7),
        "-": () => this.zoom(1 / 0.7),
        0: () => this.show(0, this.span),
        Escape: () => {
          this.chosen = null;
          this.sums.replaceChildren();
          this.canvas.changed();
        },
      };
      if (!acts[event.key] || event.ctrlKey || event.metaKey) return;
      acts[event.key]();
      event.preventDefault();
    });
  }

  // The slice at a place, or one within three pixels.
  hit({ x, y }) {
    const item = this.items.find((one) => y >= one.y && y < one.y + one.height);
    const row = item?.row;
    if (!row) return null;
    const near = (3 * (this.to - this.from)) / this.canvas.width;
    const time = this.time(x);
    let best = null;
    for (let i = this.first(row, time - near); i < row.size && row.start[i] <= time + near; i++) {
      const away = Math.max(row.start[i] - time, time - row.end[i], 0);
      if (!best || away < best.away || (away === best.away && row.end[i] - row.start[i] > row.end[best.i] - row.start[best.i])) best = { i, away };
    }
    return best && { item, row, i: best.i };
  }

  hover(event, at) {
    const item = this.items.find((one) => at.y >= one.y && at.y < one.y + one.height);
    if (item?.curve) {
      const { ts, value, unit, title } = item.curve;
      const i = ts.findLastIndex((time) => time <= this.time(at.x));
      return i < 0 ? rung.tip.hide() : rung.tip.show(event.clientX, event.clientY, `${title}: ${rung.amount(value[i], unit)}`);
    }
    const hit = this.hit(at);
    if (!hit) return rung.tip.hide();
    const { row, i } = hit;
    const { categories, details, kinds } = this.record;
    const kind = row.kind[i];
    const many = row.many.get(i);
    const time = `${rung.duration(row.end[i] - row.start[i], 4)} from ${rung.duration(row.start[i], 7)}`;
    const lines = many
      ? [`${rung.count(many.events)} short events, ${rung.duration(many.busy)} of ${time}`, `the longest: ${this.name(kind)}`]
      : [this.name(kind), time, details[kinds.detail[kind]], categories[kinds.category[kind]]];
    rung.tip.show(event.clientX, event.clientY, lines.filter(Boolean).join("\n"));
  }
};

for (const box of document.querySelectorAll('[data-picture="timeline"]')) {
  box.hidden = false;
  new rung.Timeline(box, rung.record);
}
