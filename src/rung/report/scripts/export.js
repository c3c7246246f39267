// Each picture as a file: SVG with its colours written into it, so that it looks the same anywhere, and PNG drawn of that.
"use strict";
rung.pictures = (() => {
  const INHERITED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "paint-order", "font-family", "font-size", "font-weight", "text-anchor"];
  const OWN = { opacity: "1", "vector-effect": "none" };
  const MARGIN = 20;
  const WIDTH = 1200; // of a picture that is not shown
  const SHARP = 2;
  const SPACE = "http://www.w3.org/2000/svg";

  // The style of each element as attributes, which every program that reads SVG knows. What is hidden is left out.
  const inline = (from, to, above) => {
    const style = getComputedStyle(from);
    for (const name of INHERITED) if (!above || style.getPropertyValue(name) !== above.getPropertyValue(name)) to.setAttribute(name, style.getPropertyValue(name));
    for (const [name, usual] of Object.entries(OWN)) if (style.getPropertyValue(name) !== usual) to.setAttribute(name, style.getPropertyValue(name));
    if (from instanceof SVGSVGElement) to.setAttribute("overflow", style.overflowX === "visible" ? "visible" : "hidden");
    for (const name of ["class", "data-tip", "role", "aria-label", "style"]) to.removeAttribute(name);
    const children = [...from.children];
    const copies = [...to.children];
    children.forEach((child, k) => {
      if (getComputedStyle(child).display === "none" && child.tagName !== "title") copies[k].remove();
      else inline(child, copies[k], style);
    });
    if (from.dataset.tip) {
      const title = document.createElementNS(SPACE, "title");
      title.textContent = from.dataset.tip;
      to.prepend(title);
    }
  };

  // {text, width, height} of a picture with a margin and the page's background.
  const drawn = (svg) => {
    const width = Math.round(svg.getBoundingClientRect().width) || WIDTH;
    const height = Number(svg.getAttribute("height"));
    const copy = svg.cloneNode(true);
    inline(svg, copy, null);
    for (const [name, value] of [["x", MARGIN], ["y", MARGIN], ["width", width], ["height", height]]) copy.setAttribute(name, value);
    const whole = document.createElementNS(SPACE, "svg");
    const size = { width: width + 2 * MARGIN, height: height + 2 * MARGIN };
    for (const [name, value] of Object.entries(size)) whole.setAttribute(name, value);
    const title = document.createElementNS(SPACE, "title");
    title.textContent = svg.getAttribute("aria-label");
    const back = document.createElementNS(SPACE, "rect");
    for (const [name, value] of Object.entries({ width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor })) back.setAttribute(name, value);
    whole.append(title, back, copy);
    return { text: new XMLSerializer().serializeToString(whole), ...size };
  };

  const saveSvg = (svg, name) => rung.save(`${name}.svg`, drawn(svg).text, "image/svg+xml");

  const savePng = (svg, name) => {
    const { text, width, height } = drawn(svg);
    const image = new Image();
    image.onload = () => {
      const canvas = rung.element("canvas", { width: width * SHARP, height: height * SHARP });
      canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
      saveCanvas(canvas, name);
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  };

  const saveCanvas = (canvas, name) => canvas.toBlob((blob) => rung.save(`${name}.png`, blob, "image/png"));

  // "PNG" and "SVG" of what `label` says.
  const buttons = (label, png, svg) => {
    const made = [["PNG", png], ["SVG", svg]].map(([text, act]) => {
      const button = rung.element("button", { type: "button", title: `Save as ${text}`, "aria-label": `${text} of: ${label}` }, text);
      button.addEventListener("click", act);
      return button;
    });
    return rung.element("div", { className: "save" }, ...made);
  };

  const counts = {};
  for (const svg of document.querySelectorAll('main svg[role="img"]')) {
    const kind = svg.classList[0];
    counts[kind] = (counts[kind] ?? 0) + 1;
    svg.dataset.file = counts[kind] > 1 ? `${kind}-${counts[kind]}` : kind;
    if (svg.closest(".still")) continue; // a script draws another in its place, which has the buttons
    svg.after(buttons(svg.getAttribute("aria-label"), () => savePng(svg, svg.dataset.file), () => saveSvg(svg, svg.dataset.file)));
  }

  // For a picture on a canvas: PNG as it is shown, SVG of the whole one that it stands for. still(): that one.
  const ofCanvas = (label, canvas, still) => {
    const flat = () => {
      const copy = rung.element("canvas", { width: canvas.width, height: canvas.height });
      const context = copy.getContext("2d");
      context.fillStyle = getComputedStyle(document.body).backgroundColor;
      context.fillRect(0, 0, copy.width, copy.height);
      context.drawImage(canvas, 0, 0);
      return copy;
    };
    return buttons(label, () => saveCanvas(flat(), still().dataset.file), () => saveSvg(still(), still().dataset.file));
  };
  return { ofCanvas };
})();
