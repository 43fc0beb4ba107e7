"""The six domains: shop, library, clinic, flights, company, music.

Each line is a table: the word for one row, the number of rows, and its columns, all after an `id`:

    customer_id>customers: placed by     a reference to a table, with the words between child and parent
    name=PEOPLE                          a label: all values of a pool below
    city{Lisbon Oslo}                    a category and its values
    joined[2012..2024] joining year      whole numbers; [4..240/0.5] in steps; the words for it if they are not its name
    ordered_on<2022..2024> order date    dates of these years; <2022..2024?0.2> of which a share is empty
"""

from __future__ import annotations

import re
from datetime import date
from itertools import product

from agentspec.workflows.text_to_sql.generated.databases import Column, Database, Table

_LAST = "Adams Berg Costa Duarte Evans Fischer Garcia Holm Ito Jensen Klein Lopez Moreau Novak Olsen Park Rossi Silva"
_POOLS = {
    "PEOPLE": (
        "Alice Bruno Carla David Elena Felix Grace Hugo Irene Jonas Karin Liam Maria Noah Olga Peter Rosa Simon Tara Victor",
        _LAST,
    ),
    "TITLES": (
        "Silent Golden Broken Northern Hidden Last Crimson Gentle Distant Paper Winter Electric",
        "River Garden Mirror Harbor Letter Forest Shadow Engine Summer Bridge Island Clock Signal Window",
    ),
    "GOODS": ("Oak Steel Glass Cotton Bamboo", "Lamp Chair Table Shelf Mug Vase Rug Clock Bowl Desk"),
    "AIRLINES": ("Blue Polar Royal Sun", "Air Jet Wings Lines"),
    "AIRPORTS": ("Lisbon Oslo Vienna Dublin Prague Athens", "North South East West Central"),
    "DEPARTMENTS": ("Sales Finance Legal Support Design Research Logistics Security Training Marketing",),
    "PLAYLISTS": ("Morning Evening Road Party Study", "Mix List Hits Loop Flow"),
}
_CITIES = "city{Lisbon Oslo Vienna Dublin Prague Athens}"
_COUNTRIES = "country{Japan Brazil Norway Italy Canada Kenya}"
_COLUMN = re.compile(
    r"(?P<name>\w+)(?:>(?P<refers>\w+):(?P<relation>.*)|=(?P<pool>\w+)|\{(?P<category>.*)\}"
    r"|\[(?P<low>[\d.]+?)\.\.(?P<high>[\d.]+)(?:/(?P<step>[\d.]+))?\](?P<number>.*)"
    r"|<(?P<first>\d+)\.\.(?P<last>\d+)(?:\?(?P<empty>[\d.]+))?>(?P<date>.*))"
)


def _pool(name: str) -> tuple[str, ...]:
    return tuple(" ".join(words) for words in product(*(part.split() for part in _POOLS[name])))


def _column(text: str) -> Column:
    found = _COLUMN.fullmatch(text)
    assert found, text
    part = found.groupdict(default="")
    name = part["name"]
    if part["refers"]:
        return Column(name, "ref", refers=part["refers"], relation=part["relation"].strip())
    if part["pool"]:
        return Column(name, "label", name, values=_pool(part["pool"]))
    if part["category"]:
        return Column(name, "category", name, values=tuple(part["category"].split()))
    if part["low"]:
        low, high, step = (float(n) if "." in n else int(n) for n in (part["low"], part["high"], part["step"] or "1"))
        return Column(name, "number", part["number"].strip() or name, low=low, high=high, step=step)
    first, last = date(int(part["first"]), 1, 1), date(int(part["last"]), 12, 28)
    return Column(name, "date", part["date"].strip(), first=first, last=last, empty_share=float(part["empty"] or 0))


def _database(name: str, tables: str) -> Database:
    made = []
    for line in tables.strip().splitlines():
        head, *columns = (part.strip() for part in line.split("|"))
        singular, rows = head.rsplit(" ", 1)
        plural = singular[:-1] + "ies" if singular.endswith("y") else singular + "s"
        all_columns = (Column("id", "key", "id"), *map(_column, columns))
        made.append(Table(plural.replace(" ", "_"), singular, plural, int(rows), all_columns))
    return Database(name, tuple(made))


SHOP = _database("shop", f"""
customer 60 | name=PEOPLE | {_CITIES} | segment{{consumer business school}} | joined[2012..2024] joining year
product 45 | name=GOODS | category{{kitchen office garden bedroom}} | price[4..240/0.5] | stock[0..400]
order 180 | customer_id>customers: placed by | ordered_on<2022..2024> order date | status{{shipped pending returned cancelled}} | total[10..950]
order item 320 | order_id>orders: in | product_id>products: for | quantity[1..12] | discount[0..40/5]
""")  # fmt: skip
LIBRARY = _database("library", f"""
author 30 | name=PEOPLE | {_COUNTRIES} | born[1920..1995] birth year
book 90 | title=TITLES | author_id>authors: written by | genre{{novel poetry history science travel}} | pages[80..900] page count | published[1950..2024] publication year
member 50 | name=PEOPLE | {_CITIES} | level{{basic student premium}} | age[12..85]
loan 220 | book_id>books: of | member_id>members: taken by | loaned_on<2022..2024> loan date | returned_on<2022..2024?0.2> return date | fine[0..30/0.5]
""")  # fmt: skip
CLINIC = _database("clinic", f"""
doctor 20 | name=PEOPLE | specialty{{cardiology surgery pediatrics neurology}} | experience[1..40]
patient 70 | name=PEOPLE | {_CITIES} | insurance{{public private none}} | age[1..95]
visit 210 | patient_id>patients: made by | doctor_id>doctors: to | visited_on<2022..2024> visit date | reason{{checkup injury pain vaccine}} | cost[20..600]
prescription 160 | visit_id>visits: from | drug{{aspirin insulin codeine statin zinc}} | dose[5..500/5] | days[1..60] day count
""")  # fmt: skip
FLIGHTS = _database("flights", f"""
airline 12 | name=AIRLINES | {_COUNTRIES} | fleet[5..300] fleet size
airport 24 | name=AIRPORTS | region{{Europe Asia Africa America}} | gates[4..120] gate count
flight 150 | airline_id>airlines: operated by | airport_id>airports: departing from | destination{{Rome Cairo Tokyo Lima Boston}} | distance[200..9800/10] | duration[40..840]
booking 300 | flight_id>flights: on | class{{economy premium first}} | booked_on<2022..2024> booking date | fare[40..2400]
""")  # fmt: skip
COMPANY = _database("company", f"""
department 10 | name=DEPARTMENTS | {_CITIES} | budget[100..5000/50]
employee 110 | name=PEOPLE | department_id>departments: in | job{{analyst engineer manager assistant writer}} | salary[2000..9900/50] | hired[2005..2024] hiring year
project 40 | title=TITLES | department_id>departments: run by | status{{active planned closed}} | cost[10..900/5] | ends_on<2024..2027?0.2> end date
assignment 240 | employee_id>employees: held by | project_id>projects: on | role{{lead member reviewer}} | hours[4..320] hour count
""")  # fmt: skip
MUSIC = _database("music", f"""
artist 30 | name=PEOPLE | {_COUNTRIES} | formed[1960..2020] founding year
album 70 | title=TITLES | artist_id>artists: by | format{{vinyl disc digital}} | released[1970..2024] release year | price[5..60/0.5]
track 160 | title=TITLES | album_id>albums: from | genre{{jazz rock folk metal soul}} | seconds[90..600] length | plays[0..9000/10] play count
playlist 20 | name=PLAYLISTS | mood{{calm happy dark}} | followers[0..5000/10] follower count
entry 260 | playlist_id>playlists: in | track_id>tracks: of | position[1..40] | added_on<2022..2024> adding date
""")  # fmt: skip

DATABASES: tuple[Database, ...] = (SHOP, LIBRARY, CLINIC, FLIGHTS, COMPANY, MUSIC)
