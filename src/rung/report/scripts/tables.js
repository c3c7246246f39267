// Tables that sort, filter, copy and export. A cell's own value is in data-v where what is shown is not all of it.
"use strict";
rung.enhance = (() => {
  const value = (cell) => cell.dataset.v ?? cell.textContent;
  const body = (table) => table.tBodies[0];
  const shownRows = (table) => [...body(table).rows].filter((row) => !row.hidden);

  const sort = (table, column, head) => {
    const heads = [...table.tHead.rows[0].cells];
    const number = head.classList.contains("number");
    const falling = head.ariaSort ? head.ariaSort === "ascending" : number; // of numbers the largest first
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const keyed = [...body(table).rows].map((row) => {
      const text = value(row.cells[column]);
      return { row, key: number ? parseFloat(text) : text.toLowerCase(), empty: text === "" };
    });
    const order = new Intl.Collator("en", { numeric: true }).compare;
    keyed.sort((a, b) => {
      if (a.empty || b.empty) return a.empty - b.empty; // what is not known stays below
      const way = number ? a.key - b.key : order(a.key, b.key);
      return falling ? -way : way;
    });
    body(table).append(...keyed.map((item) => item.row));
  };

  const filter = (table, text) => {
    const wanted = text.toLowerCase();
    for (const row of body(table).rows) {
      row.hidden = wanted !== "" && ![...row.cells].some((cell) => `${cell.textContent}\n${value(cell)}`.toLowerCase().includes(wanted));
    }
  };

  const lines = (table, shown) => {
    const heads = [...table.tHead.rows[0].cells].map((head) => head.dataset.name ?? head.textContent);
    return [heads, ...shownRows(table).map((row) => [...row.cells].map((cell) => (shown ? cell.textContent : value(cell))))];
  };
  const quoted = (text) => (/[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const csv = (table) => lines(table, false).map((cells) => cells.map(quoted).join(",")).join("\n") + "\n";

  const copy = async (table, button) => {
    const text = lines(table, true).map((cells) => cells.map((cell) => cell.replace(/[\t\n]/g, " ")).join("\t")).join("\n");
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "The browser refused";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  };

  const enhance = (table) => {
    const name = table.dataset.table;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = rung.element("button", { type: "button" }, ...head.childNodes);
      button.addEventListener("click", () => sort(table, column, head));
      head.append(button);
    });
    const search = rung.element("input", { type: "search", placeholder: "Filter", "aria-label": `Filter the table ${name}` });
    search.addEventListener("input", () => filter(table, search.value));
    const copied = rung.element("button", { type: "button" }, "Copy");
    copied.addEventListener("click", () => copy(table, copied));
    const saved = rung.element("button", { type: "button" }, "CSV");
    saved.addEventListener("click", () => rung.save(`${name}.csv`, csv(table), "text/csv"));
    const place = table.closest(".wide") ?? table;
    place.before(rung.element("div", { className: "bar" }, search, copied, saved));
  };

  for (const table of document.querySelectorAll("table.data")) enhance(table);

  // A link to a table opens it.
  const reveal = () => {
    const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  addEventListener("hashchange", reveal);
  reveal();
  return enhance;
})();
