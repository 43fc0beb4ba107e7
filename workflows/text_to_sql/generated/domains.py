"""The six domains: shop, library, clinic, flights, company, music."""

from __future__ import annotations

from datetime import date
from itertools import product

from agentspec.workflows.text_to_sql.generated.databases import Column, Database, Table

_FIRST = (
    "Alice Bruno Carla David Elena Felix Grace Hugo Irene Jonas Karin Liam Maria Noah Olga Peter Rosa Simon Tara Victor"
)
_LAST = "Adams Berg Costa Duarte Evans Fischer Garcia Holm Ito Jensen Klein Lopez Moreau Novak Olsen Park Rossi Silva"
_ADJECTIVES = "Silent Golden Broken Northern Hidden Last Crimson Gentle Distant Paper Winter Electric"
_NOUNS = "River Garden Mirror Harbor Letter Forest Shadow Engine Summer Bridge Island Clock Signal Window"
_CITIES = ("Lisbon", "Oslo", "Vienna", "Dublin", "Prague", "Athens")
_COUNTRIES = ("Japan", "Brazil", "Norway", "Italy", "Canada", "Kenya")


def _pairs(first: str, second: str) -> tuple[str, ...]:
    return tuple(" ".join(pair) for pair in product(first.split(), second.split()))


PEOPLE = _pairs(_FIRST, _LAST)
TITLES = _pairs(_ADJECTIVES, _NOUNS)


def _key() -> Column:
    return Column("id", "key", "id")


def _ref(name: str, table: str, relation: str) -> Column:
    return Column(name, "ref", refers=table, relation=relation)


def _label(name: str, phrase: str, values: tuple[str, ...]) -> Column:
    return Column(name, "label", phrase, values=values)


def _category(name: str, phrase: str, *values: str) -> Column:
    return Column(name, "category", phrase, values=values)


def _number(name: str, phrase: str, low: float, high: float, step: float = 1) -> Column:
    return Column(name, "number", phrase, low=low, high=high, step=step)


def _date(name: str, phrase: str, first: int, last: int, empty_share: float = 0.0) -> Column:
    return Column(name, "date", phrase, first=date(first, 1, 1), last=date(last, 12, 28), empty_share=empty_share)


SHOP = Database(
    "shop",
    (
        Table(
            "customers",
            "customer",
            "customers",
            60,
            (
                _key(),
                _label("name", "name", PEOPLE),
                _category("city", "city", *_CITIES),
                _category("segment", "segment", "consumer", "business", "school"),
                _number("joined", "joining year", 2012, 2024),
            ),
        ),
        Table(
            "products",
            "product",
            "products",
            45,
            (
                _key(),
                _label(
                    "name",
                    "name",
                    _pairs("Oak Steel Glass Cotton Bamboo", "Lamp Chair Table Shelf Mug Vase Rug Clock Bowl Desk"),
                ),
                _category("category", "category", "kitchen", "office", "garden", "bedroom"),
                _number("price", "price", 4, 240, 0.5),
                _number("stock", "stock", 0, 400),
            ),
        ),
        Table(
            "orders",
            "order",
            "orders",
            180,
            (
                _key(),
                _ref("customer_id", "customers", "placed by"),
                _date("ordered_on", "order date", 2022, 2024),
                _category("status", "status", "shipped", "pending", "returned", "cancelled"),
                _number("total", "total", 10, 950),
            ),
        ),
        Table(
            "order_items",
            "order item",
            "order items",
            320,
            (
                _key(),
                _ref("order_id", "orders", "in"),
                _ref("product_id", "products", "for"),
                _number("quantity", "quantity", 1, 12),
                _number("discount", "discount", 0, 40, 5),
            ),
        ),
    ),
)

LIBRARY = Database(
    "library",
    (
        Table(
            "authors",
            "author",
            "authors",
            30,
            (
                _key(),
                _label("name", "name", PEOPLE),
                _category("country", "country", *_COUNTRIES),
                _number("born", "birth year", 1920, 1995),
            ),
        ),
        Table(
            "books",
            "book",
            "books",
            90,
            (
                _key(),
                _label("title", "title", TITLES),
                _ref("author_id", "authors", "written by"),
                _category("genre", "genre", "novel", "poetry", "history", "science", "travel"),
                _number("pages", "page count", 80, 900),
                _number("published", "publication year", 1950, 2024),
            ),
        ),
        Table(
            "members",
            "member",
            "members",
            50,
            (
                _key(),
                _label("name", "name", PEOPLE),
                _category("city", "city", *_CITIES),
                _category("level", "level", "basic", "student", "premium"),
                _number("age", "age", 12, 85),
            ),
        ),
        Table(
            "loans",
            "loan",
            "loans",
            220,
            (
                _key(),
                _ref("book_id", "books", "of"),
                _ref("member_id", "members", "taken by"),
                _date("loaned_on", "loan date", 2022, 2024),
                _date("returned_on", "return date", 2022, 2024, 0.2),
                _number("fine", "fine", 0, 30, 0.5),
            ),
        ),
    ),
)

CLINIC = Database(
    "clinic",
    (
        Table(
            "doctors",
            "doctor",
            "doctors",
            20,
            (
                _key(),
                _label("name", "name", PEOPLE),
                _category("specialty", "specialty", "cardiology", "surgery", "pediatrics", "neurology"),
                _number("experience", "experience", 1, 40),
            ),
        ),
        Table(
            "patients",
            "patient",
            "patients",
            70,
            (
                _key(),
                _label("name", "name", PEOPLE),
                _category("city", "city", *_CITIES),
                _category("insurance", "insurance", "public", "private", "none"),
                _number("age", "age", 1, 95),
            ),
        ),
        Table(
            "visits",
            "visit",
            "visits",
            210,
            (
                _key(),
                _ref("patient_id", "patients", "made by"),
                _ref("doctor_id", "doctors", "to"),
                _date("visited_on", "visit date", 2022, 2024),
                _category("reason", "reason", "checkup", "injury", "pain", "vaccine"),
                _number("cost", "cost", 20, 600),
            ),
        ),
        Table(
            "prescriptions",
            "prescription",
            "prescriptions",
            160,
            (
                _key(),
                _ref("visit_id", "visits", "from"),
                _category("drug", "drug", "aspirin", "insulin", "codeine", "statin", "zinc"),
                _number("dose", "dose", 5, 500, 5),
                _number("days", "day count", 1, 60),
            ),
        ),
    ),
)

FLIGHTS = Database(
    "flights",
    (
        Table(
            "airlines",
            "airline",
            "airlines",
            12,
            (
                _key(),
                _label("name", "name", _pairs("Blue Polar Royal Sun", "Air Jet Wings Lines")),
                _category("country", "country", *_COUNTRIES),
                _number("fleet", "fleet size", 5, 300),
            ),
        ),
        Table(
            "airports",
            "airport",
            "airports",
            24,
            (
                _key(),
                _label(
                    "name", "name", _pairs("Lisbon Oslo Vienna Dublin Prague Athens", "North South East West Central")
                ),
                _category("region", "region", "Europe", "Asia", "Africa", "America"),
                _number("gates", "gate count", 4, 120),
            ),
        ),
        Table(
            "flights",
            "flight",
            "flights",
            150,
            (
                _key(),
                _ref("airline_id", "airlines", "operated by"),
                _ref("airport_id", "airports", "departing from"),
                _category("destination", "destination", "Rome", "Cairo", "Tokyo", "Lima", "Boston"),
                _number("distance", "distance", 200, 9800, 10),
                _number("duration", "duration", 40, 840),
            ),
        ),
        Table(
            "bookings",
            "booking",
            "bookings",
            300,
            (
                _key(),
                _ref("flight_id", "flights", "on"),
                _category("class", "class", "economy", "premium", "first"),
                _date("booked_on", "booking date", 2022, 2024),
                _number("fare", "fare", 40, 2400),
            ),
        ),
    ),
)

COMPANY = Database(
    "company",
    (
        Table(
            "departments",
            "department",
            "departments",
            10,
            (
                _key(),
                _label(
                    "name",
                    "name",
                    (
                        "Sales",
                        "Finance",
                        "Legal",
                        "Support",
                        "Design",
                        "Research",
                        "Logistics",
                        "Security",
                        "Training",
                        "Marketing",
                    ),
                ),
                _category("city", "city", *_CITIES),
                _number("budget", "budget", 100, 5000, 50),
            ),
        ),
        Table(
            "employees",
            "employee",
            "employees",
            110,
            (
                _key(),
                _label("name", "name", PEOPLE),
                _ref("department_id", "departments", "in"),
                _category("job", "job", "analyst", "engineer", "manager", "assistant", "writer"),
                _number("salary", "salary", 2000, 9900, 50),
                _number("hired", "hiring year", 2005, 2024),
            ),
        ),
        Table(
            "projects",
            "project",
            "projects",
            40,
            (
                _key(),
                _label("title", "title", TITLES),
                _ref("department_id", "departments", "run by"),
                _category("status", "status", "active", "planned", "closed"),
                _number("cost", "cost", 10, 900, 5),
                _date("ends_on", "end date", 2024, 2027, 0.2),
            ),
        ),
        Table(
            "assignments",
            "assignment",
            "assignments",
            240,
            (
                _key(),
                _ref("employee_id", "employees", "held by"),
                _ref("project_id", "projects", "on"),
                _category("role", "role", "lead", "member", "reviewer"),
                _number("hours", "hour count", 4, 320),
            ),
        ),
    ),
)

MUSIC = Database(
    "music",
    (
        Table(
            "artists",
            "artist",
            "artists",
            30,
            (
                _key(),
                _label("name", "name", PEOPLE),
                _category("country", "country", *_COUNTRIES),
                _number("formed", "founding year", 1960, 2020),
            ),
        ),
        Table(
            "albums",
            "album",
            "albums",
            70,
            (
                _key(),
                _label("title", "title", TITLES),
                _ref("artist_id", "artists", "by"),
                _category("format", "format", "vinyl", "disc", "digital"),
                _number("released", "release year", 1970, 2024),
                _number("price", "price", 5, 60, 0.5),
            ),
        ),
        Table(
            "tracks",
            "track",
            "tracks",
            160,
            (
                _key(),
                _label("title", "title", TITLES),
                _ref("album_id", "albums", "from"),
                _category("genre", "genre", "jazz", "rock", "folk", "metal", "soul"),
                _number("seconds", "length", 90, 600),
                _number("plays", "play count", 0, 9000, 10),
            ),
        ),
        Table(
            "playlists",
            "playlist",
            "playlists",
            20,
            (
                _key(),
                _label("name", "name", _pairs("Morning Evening Road Party Study", "Mix List Hits Loop Flow")),
                _category("mood", "mood", "calm", "happy", "dark"),
                _number("followers", "follower count", 0, 5000, 10),
            ),
        ),
        Table(
            "entries",
            "entry",
            "entries",
            260,
            (
                _key(),
                _ref("playlist_id", "playlists", "in"),
                _ref("track_id", "tracks", "of"),
                _number("position", "position", 1, 40),
                _date("added_on", "adding date", 2022, 2024),
            ),
        ),
    ),
)

DATABASES: tuple[Database, ...] = (SHOP, LIBRARY, CLINIC, FLIGHTS, COMPANY, MUSIC)


def database_named(name: str) -> Database:
    """The shipped database of that name. Raises KeyError with the known names if there is none."""
    for database in DATABASES:
        if database.name == name:
            return database
    raise KeyError(f"unknown database {name!r}; known: {[database.name for database in DATABASES]}")
