"use strict";
// Shows the data of this page. Text of it becomes text nodes and attributes' values, never markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = data.page;
  const ROW = 34;
  const SVG = "http:" + "//www.w3.org/2000/svg";
  const at = (id) => document.getElementById(id);
  // Indexes of a row's fields.
  const [NUMBER, TIME, FROM, TO, LABEL, VERDICT, TONE, DESCRIPTION, REMARK, MESSAGE, FLAGS, WAY, SECTIONS] = Array(13).keys();
  const [M_OPERATION, M_FROM, M_TO, M_PSN, M_BYTES, M_PACKETS, M_REPEATS, M_BEGIN, M_END, M_OUTCOME, M_TONE] =
    Array(11).keys();

  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const draw = (tag, attributes, text) => {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const seconds = (ns) => (ns / 1e9).toFixed(6);
  const span = (ns) => (ns < 1e6 ? (ns / 1e3).toFixed(1) + " µs" : ns < 1e9 ? (ns / 1e6).toFixed(2) + " ms"
    : (ns / 1e9).toFixed(3) + " s");
  const end = (column) => page.columns[column][0] + " QP " + page.columns[column][1];

  // The table of messages: name and width of each column, and true for numbers.
  // The last column fills the remaining width.
  const MESSAGE_CELLS = [["#", 46, 1], ["operation", 112], ["from", 150], ["to", 150], ["PSN", 78, 1],
    ["bytes", 72, 1], ["packets", 62, 1], ["repeated", 68, 1], ["begin, s", 80, 1], ["took", 78, 1], ["outcome", 180]];

  let tab = "packets";
  let shown = [];
  let lanes = [];
  let picked = -1;

  // The top of the page.
  at("title").textContent = page.title;
  // The filter that a click on a fact sets: a verdict, or text to search for.
  const FACTS = { packets: "", retransmissions: "retransmission", "RNR NAKs": "RNR NAK", NAKs: "NAK",
    "PSN gaps": "PSN gap", "lost by rules": "*", damaged: "*", truncated: "text:truncated:" };
  for (const [name, value, tone] of page.facts) {
    const isLink = value !== "0" && (name in FACTS || name === "messages");
    const fact = make(isLink ? "button" : "div", "fact " + (value === "0" ? "zero" : tone));
    fact.append(make("b", "", value), make("span", "", name));
    if (isLink) {
      fact.type = "button";
      fact.title = "Show the " + name + " only";
      fact.addEventListener("click", () => show(name));
    }
    at("facts").append(fact);
  }
  for (const note of page.notes) at("notes").append(make("div", "", note));

  // The filters and their options.
  const option = (value, text) => {
    const element = make("option", "", text);
    element.value = value;
    return element;
  };
  at("f-qp").append(option("", "all"), ...page.columns.map((_, column) => option(column, end(column))));
  const verdicts = new Map();
  for (const row of data.rows) verdicts.set(row[VERDICT], (verdicts.get(row[VERDICT]) || 0) + 1);
  at("f-verdict").append(option("", "all"), option("*", "all but ok"));
  for (const [verdict, count] of verdicts) at("f-verdict").append(option(verdict, verdict + " (" + count + ")"));
  at("l-way").hidden = !data.rows.some((row) => row[WAY]);

  const filter = () => {
    const [qp, verdict, way, text] = ["f-qp", "f-verdict", "f-way", "f-text"].map((id) => at(id).value);
    const message = at("f-message").value;
    const words = text.toLowerCase().split(/\s+/).filter((word) => word);
    const has = (all) => words.every((word) => all.includes(word));
    if (tab === "packets") {
      shown = data.rows.filter((row) => (qp === "" || row[FROM] == qp || row[TO] == qp)
        && (verdict === "" || (verdict === "*" ? row[VERDICT] !== "ok" || row[FLAGS] & 2 : row[VERDICT] === verdict))
        && (way === "" || row[WAY] === way) && (message === "" || row[MESSAGE] == message - 1)
        && (!words.length || has((row[LABEL] + " " + row[DESCRIPTION] + " " + row[REMARK]).toLowerCase())));
    } else {
      shown = data.messages.map((row, index) => [index, row]).filter(([index, row]) =>
        (qp === "" || row[M_FROM] == qp || row[M_TO] == qp) && (message === "" || index == message - 1)
        && (verdict !== "*" || row[M_TONE] !== "good" || row[M_REPEATS])
        && (!words.length || has((row[M_OPERATION] + " psn=" + row[M_PSN] + " " + row[M_OUTCOME]).toLowerCase())));
    }
    const all = tab === "packets" ? data.rows.length : data.messages.length;
    at("shown").textContent = shown.length === all ? all + " " + tab : shown.length + " of " + all + " " + tab;
    const used = new Set();
    if (tab === "packets") for (const row of shown) used.add(row[FROM]).add(row[TO]);
    lanes = page.columns.map((_, column) => column).filter((column) => used.has(column));
    picked = -1;
    head();
    at("list").scrollTop = 0;
    at("space").style.height = shown.length * ROW + "px";
    const least = tab === "packets" ? 490 + lanes.length * laneWidth() : MESSAGE_CELLS.reduce((sum, [, width]) => sum + width, 0);
    at("head").style.minWidth = at("space").style.minWidth = least + "px";
    at("list").dataset.rows = shown.length;
    paint();
    pick(0);
  };

  // Wide enough for the text of an arrow, and narrow enough for the description next to it.
  const laneWidth = () => Math.max(90, Math.min(230, Math.floor(460 / Math.max(1, lanes.length))));
  const CHAR = 6.7;
  // The text of an arrow, around `middle` or from `start` on: it stays inside the lanes, and what
  // has no room there is shortened; the description and the details have all of it.
  const labelOf = (text, middle, y, start) => {
    const room = laneWidth() * lanes.length - (start || 0);
    const most = Math.max(6, Math.floor(room / CHAR));
    const shown = text.length > most ? text.slice(0, most - 1) + "…" : text;
    const half = (shown.length * CHAR) / 2;
    const x = start === undefined ? Math.min(Math.max(middle, half), laneWidth() * lanes.length - half) : start;
    const label = draw("text", { x, y, "text-anchor": start === undefined ? "middle" : "start", class: "halo" }, shown);
    if (shown !== text) label.append(draw("title", {}, text));
    return label;
  };
  // A cell of the table of messages.
  const cellOf = (text, width, isNumber) => {
    const cell = make("div", isNumber ? "cell num" : "cell", text);
    cell.style.width = width + "px";
    if (!isNumber) cell.title = text;
    return cell;
  };
  const head = () => {
    const line = at("head");
    line.replaceChildren();
    if (tab === "messages") {
      for (const [name, width, isNumber] of MESSAGE_CELLS) {
        line.append(cellOf(name, width, isNumber));
      }
      return;
    }
    line.append(make("div", "number", "frame"), make("div", "time", "time, s"), make("div", "delta", "since last"));
    for (const column of lanes) {
      const cell = make("div", "end", page.columns[column][0]);
      cell.style.width = laneWidth() + "px";
      cell.append(make("b", "", "QP " + page.columns[column][1]));
      line.append(cell);
    }
    line.append(make("div", "description", "what it means"));
  };

  // The lanes and the arrow of a row.
  const arrow = (row) => {
    const width = laneWidth();
    const tone = row[TONE] === "good" ? (row[FLAGS] & 1 ? "answer" : "good") : row[TONE];
    const svg = draw("svg", { width: width * lanes.length, height: ROW, class: tone });
    const x = (column) => (lanes.indexOf(column) + 0.5) * width;
    for (const column of lanes) svg.append(draw("line", { x1: x(column), x2: x(column), y1: 0, y2: ROW, class: "lane" }));
    const [from, to, y] = [x(row[FROM]), x(row[TO]), 24];
    const stroke = { stroke: "currentColor", "stroke-width": 1.8, fill: "none" };
    if (row[FLAGS] & 1) stroke["stroke-dasharray"] = "6 3";
    if (from === to) {
      svg.append(draw("path", { d: `M${from} ${y - 12} h26 v12 h-20`, ...stroke }));
      svg.append(draw("path", { d: `M${from + 2} ${y} l8 -4 v8 z`, fill: "currentColor" }));
      svg.append(labelOf(row[LABEL], from, 16, Math.min(from + 32, laneWidth() * lanes.length / 2)));
      return svg;
    }
    const way = Math.sign(to - from);
    const stop = row[FLAGS] & 2 ? from + (to - from) * 0.62 : to;
    svg.append(draw("line", { x1: from, x2: stop - way * 7, y1: y, y2: y, ...stroke }));
    if (row[FLAGS] & 2) {
      svg.append(draw("path", { d: `M${stop - 5} ${y - 5} l10 10 m0 -10 l-10 10`, ...stroke, "stroke-dasharray": "" }));
    } else {
      svg.append(draw("path", { d: `M${to - way * 1} ${y} l${-way * 9} -4.5 v9 z`, fill: "currentColor" }));
    }
    const middle = (from + to) / 2;
    svg.append(labelOf(row[LABEL], middle, 14));
    return svg;
  };

  const packetRow = (row, index) => {
    const line = make("div", "row " + (row[FLAGS] & 2 && row[TONE] === "good" ? "warning" : row[TONE]));
    const before = index > 0 ? shown[index - 1][TIME] : row[TIME];
    line.append(make("div", "number", row[NUMBER]), make("div", "time", seconds(row[TIME])));
    line.append(make("div", "delta", index > 0 ? "+" + span(Math.max(0, row[TIME] - before)) : ""));
    const description = make("div", "description");
    if (row[FLAGS] & 2) description.append(make("span", "verdict", "lost"));
    description.append(row[DESCRIPTION]);
    description.title = row[DESCRIPTION];
    line.append(arrow(row), description);
    return line;
  };

  const messageRow = ([index, row]) => {
    const line = make("div", "row " + (row[M_TONE] === "good" && row[M_REPEATS] ? "warning" : row[M_TONE]));
    const took = row[M_END] === null ? "" : span(row[M_END] - row[M_BEGIN]);
    const values = [index + 1, row[M_OPERATION], end(row[M_FROM]), end(row[M_TO]), row[M_PSN], row[M_BYTES],
      row[M_PACKETS], row[M_REPEATS], seconds(row[M_BEGIN]), took, row[M_OUTCOME]];
    MESSAGE_CELLS.forEach(([, width, isNumber], place) => {
      line.append(cellOf(values[place], width, isNumber));
    });
    return line;
  };

  // Only visible rows are in the document.
  const paint = () => {
    const list = at("list");
    const first = Math.max(0, Math.floor(list.scrollTop / ROW) - 8);
    const last = Math.min(shown.length, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 8);
    const rows = [];
    for (let index = first; index < last; index++) {
      const row = tab === "packets" ? packetRow(shown[index], index) : messageRow(shown[index]);
      row.style.top = index * ROW + "px";
      row.dataset.index = index;
      if (index === picked) row.classList.add("picked");
      rows.push(row);
    }
    at("space").replaceChildren(...rows);
  };

  const table = (rows) => {
    const element = make("table");
    for (const [name, value] of rows) {
      const line = make("tr");
      line.append(make("td", "", name), make("td", "", value));
      element.append(line);
    }
    return element;
  };
  const act = (text, action) => {
    const button = make("button", "", text);
    button.type = "button";
    button.addEventListener("click", action);
    return button;
  };

  const packetDetail = (row) => {
    const parts = [make("h2", "", "Frame " + row[NUMBER] + ": " + row[LABEL]), make("p", "", row[DESCRIPTION])];
    if (row[REMARK]) parts.push(make("h3", "", "REMARK IN THE FILE"), make("p", "", row[REMARK]));
    if (row[MESSAGE] >= 0) parts.push(act("Message " + (row[MESSAGE] + 1) + " only", () => only("f-message", row[MESSAGE] + 1)));
    if (page.columns.length > 2) parts.push(act("QP " + page.columns[row[TO]][1] + " only", () => only("f-qp", row[TO])));
    parts.push(make("h3", "", "HERE"), table([["time", seconds(row[TIME]) + " s"], ["from", end(row[FROM])],
      ["to", end(row[TO])], ["recorded", row[WAY] ? "as " + row[WAY] : "on the way"], ["verdict", row[VERDICT]]]));
    for (const [shape, ...values] of row[SECTIONS]) {
      const [name, fields] = page.shapes[shape];
      parts.push(make("h3", "", name), table(fields.map((field, place) => [field, values[place]])));
    }
    return parts;
  };
  const messageDetail = ([index, row]) => [make("h2", "", "Message " + (index + 1) + ": " + row[M_OPERATION]),
    make("p", "", row[M_OUTCOME]), act("Show its packets", () => { tab = "packets"; tabs(); only("f-message", index + 1); })];

  const pick = (index) => {
    if (index < 0 || index >= shown.length) {
      if (!shown.length) at("detail").replaceChildren(make("p", "", "Nothing passes the filters."));
      return;
    }
    picked = index;
    at("detail").replaceChildren(...(tab === "packets" ? packetDetail(shown[index]) : messageDetail(shown[index])));
    for (const row of at("space").children) row.classList.toggle("picked", row.dataset.index == picked);
  };
  const only = (id, value) => {
    at(id).value = value;
    filter();
  };
  const show = (name) => {
    const filtered = FACTS[name] || "";
    tab = name === "messages" ? "messages" : "packets";
    tabs();
    for (const id of ["f-qp", "f-way", "f-message"]) at(id).value = "";
    at("f-text").value = filtered.startsWith("text:") ? filtered.slice(5) : "";
    only("f-verdict", filtered.startsWith("text:") ? "" : filtered);
  };
  const tabs = () => ["packets", "messages"].forEach((name) => at("tab-" + name).classList.toggle("on", name === tab));

  // Event handlers.
  for (const name of ["packets", "messages"]) at("tab-" + name).addEventListener("click", () => {
    tab = name;
    tabs();
    filter();
  });
  for (const id of ["f-qp", "f-verdict", "f-way", "f-message", "f-text"]) at(id).addEventListener("input", filter);
  at("clear").addEventListener("click", () => {
    for (const id of ["f-qp", "f-verdict", "f-way", "f-message", "f-text"]) at(id).value = "";
    filter();
  });
  at("list").addEventListener("scroll", paint);
  window.addEventListener("resize", paint);
  at("space").addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row) pick(Number(row.dataset.index));
  });
  at("list").addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    pick(picked + step);
    const [list, top] = [at("list"), picked * ROW];
    if (top < list.scrollTop) list.scrollTop = top;
    if (top + ROW > list.scrollTop + list.clientHeight - 40) list.scrollTop = top + ROW - list.clientHeight + 40;
  });
  const theme = (name) => document.documentElement.dataset.theme = name;
  theme(window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  at("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  filter();
})();
