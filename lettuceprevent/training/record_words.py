"""Words of made-up business records: what fields are called, and how answers and reviews speak of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Amenity:
    """things: after "offers". has, lacks: after a subject."""

    things: tuple[str, ...]
    has: tuple[str, ...]
    lacks: tuple[str, ...]


@dataclass(frozen=True)
class Aspect:
    """Sentences of reviews and what answers make of them; {x}: a thing of that kind of business."""

    glad: tuple[str, ...]
    sad: tuple[str, ...]
    praise: tuple[str, ...]
    blame: tuple[str, ...]

    def reviews(self, good: bool) -> tuple[str, ...]:
        return self.glad if good else self.sad

    def claims(self, good: bool) -> tuple[str, ...]:
        return self.praise if good else self.blame


FIRST_WORDS = (
    "Blue",
    "Golden",
    "Old",
    "Silver",
    "Green",
    "Royal",
    "Little",
    "Happy",
    "Sunny",
    "Red",
    "Wild",
    "Copper",
    "Lucky",
    "Grand",
    "Twin",
    "Rustic",
    "Hidden",
    "Salty",
    "Maple",
    "Iron",
)
SECOND_WORDS = (
    "Lantern",
    "Harbor",
    "Fork",
    "Garden",
    "Anchor",
    "Oak",
    "River",
    "Fox",
    "Table",
    "Spoon",
    "Bean",
    "Olive",
    "Pepper",
    "Basil",
    "Wagon",
    "Bell",
    "Crown",
    "Stone",
    "Dragon",
    "Heron",
)
STREETS = ("St", "Ave", "Rd", "Blvd")
DAYS = (
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
)
CITIES = (
    ("Santa Barbara", "CA", "California"),
    ("Goleta", "CA", "California"),
    ("Tucson", "AZ", "Arizona"),
    ("Boise", "ID", "Idaho"),
    ("Reno", "NV", "Nevada"),
    ("Nashville", "TN", "Tennessee"),
    ("Tampa", "FL", "Florida"),
    ("Edmonton", "AB", "Alberta"),
    ("Philadelphia", "PA", "Pennsylvania"),
    ("New Orleans", "LA", "Louisiana"),
    ("Indianapolis", "IN", "Indiana"),
    ("Carpinteria", "CA", "California"),
)
KINDS = {
    "Restaurants": (
        "Grill",
        "Kitchen",
        "Bistro",
        "Cafe",
        "Diner",
        "Tavern",
        "Cantina",
        "Pizzeria",
        "Bakery",
        "Brewery",
    ),
    "Shopping": (
        "Books",
        "Outfitters",
        "Hardware",
        "Florist",
        "Market",
        "Boutique",
        "Toys",
        "Records",
    ),
    "Beauty & Spas": (
        "Salon",
        "Spa",
        "Barbershop",
        "Nails",
    ),
    "Hotels": (
        "Inn",
        "Hotel",
        "Lodge",
        "Suites",
        "Hostel",
    ),
    "Fitness": (
        "Gym",
        "Yoga",
        "Pilates",
        "Climbing",
    ),
}
CATEGORIES = {
    "Restaurants": (
        "Mexican",
        "Italian",
        "Thai",
        "Pizza",
        "Seafood",
        "Burgers",
        "Sandwiches",
        "Breakfast & Brunch",
        "Bars",
        "Nightlife",
        "Coffee & Tea",
        "Bakeries",
        "Desserts",
        "Vegetarian",
        "Chinese",
        "Japanese",
        "Sushi Bars",
        "Barbeque",
        "Steakhouses",
        "Mediterranean",
        "Wine Bars",
        "Cocktail Bars",
        "American (Traditional)",
        "Vietnamese",
        "Indian",
        "Greek",
        "Delis",
        "Salad",
        "Soup",
        "Juice Bars & Smoothies",
        "Caterers",
    ),
    "Shopping": (
        "Home & Garden",
        "Gift Shops",
        "Fashion",
        "Shoes",
        "Jewelry",
        "Sporting Goods",
        "Antiques",
        "Bookstores",
        "Toy Stores",
        "Flowers & Gifts",
    ),
    "Beauty & Spas": (
        "Hair Salons",
        "Nail Salons",
        "Massage",
        "Day Spas",
        "Skin Care",
        "Barbers",
        "Waxing",
        "Makeup Artists",
    ),
    "Hotels": (
        "Bed & Breakfast",
        "Resorts",
        "Event Planning & Services",
        "Venues & Event Spaces",
        "Travel",
        "Hostels",
    ),
    "Fitness": (
        "Yoga",
        "Pilates",
        "Personal Trainers",
        "Boot Camps",
        "Cycling Classes",
        "Rock Climbing",
    ),
}
THINGS = {
    "Restaurants": (
        "tacos",
        "pasta",
        "burger",
        "pizza",
        "salad",
        "ramen",
        "coffee",
        "brunch",
        "steak",
        "salmon",
        "sandwich",
        "soup",
        "dessert",
        "margaritas",
        "wings",
        "curry",
        "pancakes",
        "bread",
    ),
    "Shopping": (
        "selection",
        "shoes",
        "gifts",
        "flowers",
        "books",
        "furniture",
        "toys",
    ),
    "Beauty & Spas": (
        "haircut",
        "massage",
        "manicure",
        "facial",
        "color",
        "waxing",
    ),
    "Hotels": (
        "room",
        "breakfast",
        "bed",
        "view",
        "suite",
    ),
    "Fitness": (
        "classes",
        "equipment",
        "instructors",
        "routes",
        "sessions",
    ),
}
NOUNS = {
    "Restaurants": "restaurant",
    "Shopping": "store",
    "Beauty & Spas": "salon",
    "Hotels": "hotel",
    "Fitness": "studio",
}
AMENITIES = {
    "OutdoorSeating": Amenity(
        (
            "outdoor seating",
            "seating outdoors",
            "an outdoor seating area",
        ),
        ("has tables outside",),
        (
            "does not offer outdoor seating",
            "lacks outdoor seating",
            "has no outdoor seating",
        ),
    ),
    "RestaurantsReservations": Amenity(
        ("reservations",),
        (
            "takes reservations",
            "accepts reservations",
            "allows customers to make reservations",
        ),
        (
            "does not take reservations",
            "does not accept reservations",
        ),
    ),
    "RestaurantsTakeOut": Amenity(
        (
            "takeout",
            "takeout options",
            "take-out service",
        ),
        ("provides takeout",),
        (
            "does not offer takeout",
            "has no takeout option",
        ),
    ),
    "RestaurantsDelivery": Amenity(
        (
            "delivery",
            "delivery services",
        ),
        ("delivers",),
        (
            "does not deliver",
            "does not offer delivery",
        ),
    ),
    "RestaurantsGoodForGroups": Amenity(
        (
            "space for groups",
            "accommodations for groups",
        ),
        (
            "is good for groups",
            "is suitable for groups",
            "caters to groups",
        ),
        (
            "is not suitable for groups",
            "is not well suited to larger groups",
        ),
    ),
    "GoodForKids": Amenity(
        ("a family-friendly environment",),
        (
            "is good for kids",
            "welcomes children",
        ),
        ("is not suitable for children",),
    ),
    "HappyHour": Amenity(
        (
            "a happy hour",
            "happy hour specials",
        ),
        ("has a happy hour",),
        ("does not have a happy hour",),
    ),
    "DogsAllowed": Amenity(
        ("dog-friendly seating",),
        (
            "allows dogs",
            "welcomes dogs",
        ),
        ("does not allow dogs",),
    ),
    "WheelchairAccessible": Amenity(
        ("wheelchair access",), ("is wheelchair accessible",), ("is not wheelchair accessible",)
    ),
    "BusinessAcceptsCreditCards": Amenity(
        ("payment by credit card",), ("accepts credit cards",), ("does not accept credit cards",)
    ),
    "BikeParking": Amenity(
        (
            "bike parking",
            "parking for bikes",
        ),
        ("has bike racks",),
        ("has no bike parking",),
    ),
    "Caters": Amenity(
        (
            "catering",
            "catering services",
        ),
        ("caters events",),
        ("does not offer catering",),
    ),
    "HasTV": Amenity(("televisions",), ("has TVs on the premises",), ("has no TV",)),
    "ByAppointmentOnly": Amenity(
        ("visits by appointment",), ("works by appointment only",), ("does not require an appointment",)
    ),
    "DriveThru": Amenity(("a drive-thru",), ("has a drive-thru",), ("does not have a drive-thru",)),
    "RestaurantsTableService": Amenity(
        ("table service",), ("provides table service",), ("does not offer table service",)
    ),
    "Pool": Amenity(
        (
            "a pool",
            "a swimming pool",
        ),
        ("has a pool",),
        ("has no pool",),
    ),
    "Gym": Amenity(("a fitness room",), ("has its own gym",), ("has no gym",)),
}
PARKING = {
    "garage": (
        "garage parking",
        "a parking garage",
    ),
    "street": ("street parking",),
    "validated": ("validated parking",),
    "lot": (
        "a parking lot",
        "parking in a lot",
        "lot parking",
    ),
    "valet": ("valet parking",),
}
AMBIENCE = (
    "romantic",
    "intimate",
    "touristy",
    "hipster",
    "divey",
    "classy",
    "trendy",
    "upscale",
    "casual",
)
MUSIC = {
    "dj": "a DJ",
    "live": "live music",
    "jukebox": "a jukebox",
    "karaoke": "karaoke",
    "background_music": "background music",
}
ASPECTS = {
    "service": Aspect(
        (
            "The staff was so friendly and helpful.",
            "Great service from start to finish!",
            "Our server was attentive and kind.",
            "Everyone who works here is super nice.",
        ),
        (
            "Service was painfully slow.",
            "The staff was rude to us.",
            "We were ignored for twenty minutes.",
            "The guy at the counter could not care less.",
        ),
        (
            "the friendly staff",
            "the attentive service",
            "the excellent customer service",
        ),
        (
            "the slow service",
            "the unfriendly staff",
            "poor customer service",
        ),
    ),
    "quality": Aspect(
        (
            "Everything was delicious and fresh.",
            "Best {x} I have had in years.",
            "The {x} was amazing.",
            "Really high quality, I was impressed with the {x}.",
        ),
        (
            "The {x} was bland and cold.",
            "Very disappointed with the {x}.",
            "The {x} was nothing special, honestly mediocre.",
        ),
        (
            "the delicious {x}",
            "the quality of the {x}",
            "the {x}",
        ),
        (
            "the disappointing {x}",
            "the poor quality of the {x}",
            "the mediocre {x}",
        ),
    ),
    "price": Aspect(
        (
            "Prices are very reasonable.",
            "Great value for the money.",
            "Cheap and good!",
        ),
        (
            "Way overpriced for what you get.",
            "Too expensive, will not be back.",
            "They charged us extra without telling us.",
        ),
        (
            "the reasonable prices",
            "the good value for money",
            "the affordable prices",
        ),
        (
            "the high prices",
            "being overpriced",
            "unexpected charges",
        ),
    ),
    "place": Aspect(
        (
            "Love the atmosphere in here.",
            "Such a cute and cozy place.",
            "Beautiful decor and a great vibe.",
        ),
        (
            "The place was dirty and loud.",
            "It felt cramped and run down.",
            "Tables were sticky and the bathroom was gross.",
        ),
        (
            "the cozy atmosphere",
            "the beautiful decor",
            "the pleasant ambiance",
        ),
        (
            "the lack of cleanliness",
            "the cramped space",
            "the noisy atmosphere",
        ),
    ),
    "wait": Aspect(
        (
            "We were seated right away.",
            "Quick and easy, in and out in ten minutes.",
        ),
        (
            "We waited over an hour.",
            "The line was out the door and moved slowly.",
            "Long wait even with a booking.",
        ),
        (
            "the quick service",
            "the short wait",
        ),
        (
            "long wait times",
            "the long wait",
            "long lines",
        ),
    ),
}
FILLERS = (
    "I came here with my sister on a Friday.",
    "We stopped by on our way home.",
    "This was my second visit.",
    "My husband had been wanting to try it.",
    "Found this place by accident.",
    "We were in town for a wedding.",
    "Will be back soon!",
    "Not sure if I will return.",
    "They just reopened after a remodel.",
    "Parking was easy enough that day.",
    "I ordered online and picked it up.",
    "It is right next to the theater.",
)
BASELESS = (
    "a variety of vegetarian and vegan options",
    "a rotating seasonal menu",
    "a rewards program for regular customers",
    "a loyal customer base",
    "extended hours on weekends",
    "live entertainment on weekends",
    "locally sourced ingredients",
    "gift cards",
    "private rooms for events",
    "a kids menu",
    "ample parking",
    "online booking",
    "a convenient downtown location",
    "gluten-free choices",
    "a large patio with a view",
    "award-winning products",
    "a knowledgeable owner",
    "daily specials",
)
QUERIES = (
    "Describe this business using only the record.",
    "Summarize the listing for a customer.",
    "Write an objective overview of this local business from the structured data below. Do not make anything up.",
)
